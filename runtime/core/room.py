"""Whether a waiting request can enter, and who has to leave for a more urgent one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gristmill.runtime.core.block_pool import BlockPool
from gristmill.runtime.core.config import SchedulerConfig
from gristmill.runtime.core.request import Request

__all__ = ["Room", "victims_for"]


class Room:
    """The slots and blocks that there are once some of the running requests have left."""

    def __init__(self, config: SchedulerConfig, pool: BlockPool, running: Sequence[Request]) -> None:
        self._config = config
        self._pool = pool
        self._staying = list(running)
        self._given_back: Counter[int] = Counter()
        self._num_free = pool.num_free

    def leave(self, request: Request) -> None:
        """Count with the slot of `request`, and with what only it holds or has reserved."""
        self._staying.remove(request)
        self._num_free += request.num_reserved
        for block in request.block_table:
            self._given_back[block] += 1
            self._num_free += self._holders(block) == 0

    def fits(self, request: Request) -> bool:
        """Whether `request` can enter with a block for each token that it will compute.

        Each running request that it does not go before may need a block in the
        next step: entering on the last ones would only have it thrown out again.
        """
        if len(self._staying) >= self._config.max_num_seqs:
            return False
        needed = self._config.blocks_for(request.num_held_tokens)
        shared = sum(self._holders(cached.block) > 0 for cached in request.chain)
        growing = sum(
            other.priority <= request.priority and not other.is_protected for other in self._staying
        )
        return needed - shared + growing <= self._num_free

    def _holders(self, block: int) -> int:
        return self._pool.references(block) - self._given_back[block]


def victims_for(
    request: Request, config: SchedulerConfig, pool: BlockPool, running: Sequence[Request]
) -> list[Request] | None:
    """Who leaves for `request`, the least urgent first; nobody if it fits, None if it can't be helped.

    Only a strictly less urgent request leaves, and none that is protected.
    `running` is in order.
    """
    room = Room(config, pool, running)
    if room.fits(request):
        return []
    candidates = list(_less_urgent(request, running))
    if not candidates or not _would_help(request, config, pool, running, candidates):
        return None
    victims: list[Request] = []
    while not room.fits(request):
        victims.append(candidates[len(victims)])
        room.leave(victims[-1])
    return victims


def _less_urgent(request: Request, running: Sequence[Request]) -> Iterator[Request]:
    for other in reversed(running):
        if other.priority <= request.priority:
            return
        if not other.is_protected:
            yield other


def _would_help(
    request: Request,
    config: SchedulerConfig,
    pool: BlockPool,
    running: Sequence[Request],
    candidates: Sequence[Request],
) -> bool:
    room = Room(config, pool, running)
    for candidate in candidates:
        room.leave(candidate)
    return room.fits(request)
