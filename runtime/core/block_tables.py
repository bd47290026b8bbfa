"""What each request holds of the paged cache: its own blocks, and those that it shares."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Sequence

from gristmill.runtime.core.block_pool import BlockPool
from gristmill.runtime.core.config import SchedulerConfig
from gristmill.runtime.core.prefix_cache import CachedBlock, PrefixCache
from gristmill.runtime.core.request import Request

__all__ = ["BlockTables"]

_WORTH_A_WAIT = 4  # blocks


class BlockTables:
    """Gives requests their blocks and takes them back; finds and indexes prefixes if they are cached."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._cache = PrefixCache(config.block_size)
        self.pool = BlockPool(config.num_blocks, self._cache)

    def look_up(self, request: Request) -> None:
        """Bring a waiting request's chain up to date; its last token is always computed, for its logits."""
        if request.score_prompt:
            request.chain.clear()
        elif self._config.prefix_caching:
            most = (len(request.token_ids) - 1) // self._config.block_size
            self._cache.extend(request.chain, request.cache_root, request.token_ids, most)

    def upcoming(self, request: Request) -> Hashable | None:
        """The place and the tokens of the next few full blocks behind `request.chain`.

        Equal for two requests if what the one computes there would serve the
        other; None for one that has too little left to be worth a wait.
        """
        start = len(request.chain) * self._config.block_size
        end = start + _WORTH_A_WAIT * self._config.block_size
        if not self._config.prefix_caching or end >= len(request.token_ids):
            return None
        place = request.chain[-1] if request.chain else request.cache_root
        return place, tuple(request.token_ids[start:end])

    def enter(self, request: Request) -> tuple[int, int] | None:
        """Reserve what a request with a fresh chain needs beside it; returns the copy to make, if any."""
        chain, size = request.chain, self._config.block_size
        source, shared = self._partial_hit(request)
        request.block_table = array("i", [cached.block for cached in chain])
        self.pool.share(request.block_table)
        request.num_reserved = self._config.blocks_for(request.num_held_tokens) - len(chain)
        self.pool.reserve(request.num_reserved)
        request.num_computed = len(chain) * size + shared
        request.indexes = self._config.prefix_caching
        # The source may be given away by now. It still holds its tokens: copies come before anything is
        # written, and in the order in which they were planned.
        if source is None:
            return None
        self.grow(request, request.num_computed)
        return source.block, request.block_table[len(chain)]

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Hold blocks for the first `num_tokens`, those reserved before others; False when none is free."""
        missing = self._config.blocks_for(num_tokens) - len(request.block_table)
        if missing <= 0:
            return True
        reserved = min(missing, request.num_reserved)
        if missing - reserved > self.pool.num_free:
            return False
        request.block_table.extend(self.pool.allocate(missing, reserved))
        request.num_reserved -= reserved
        return True

    def leave(self, request: Request) -> None:
        """Take all blocks back; the chain stays with the request, for its return."""
        self.pool.release(request.block_table)
        self.pool.cancel(request.num_reserved)
        request.block_table = array("i")
        request.num_reserved = 0
        request.num_computed = 0
        request.indexes = False

    def index(self, request: Request) -> None:
        """Make the full blocks that a step has completed known to others, or share those that are known."""
        size, chain, table = self._config.block_size, request.chain, request.block_table
        while request.indexes and (len(chain) + 1) * size <= request.num_computed:
            place = len(chain)
            tokens = self._cache.block_tokens(request.token_ids, place)
            cached = self._cache.insert(chain, request.cache_root, tokens, table[place])
            if cached.block != table[place]:
                self.pool.share([cached.block])
                self.pool.release([table[place]])
                table[place] = cached.block

    def forget_cached(self, running: Iterable[Request]) -> None:
        """Forget all prefixes; those who run keep their blocks, but no longer offer them."""
        self.pool.forget_cached()
        for request in running:
            request.chain.clear()
            request.indexes = False

    def check_integrity(self, requests: Sequence[Request]) -> None:
        """Raise InternalError unless blocks are conserved and the index agrees with them."""
        reserved = sum(request.num_reserved for request in requests)
        self.pool.check_integrity((request.block_table for request in requests), reserved)
        self._cache.check_integrity()

    def _partial_hit(self, request: Request) -> tuple[CachedBlock | None, int]:
        """The cached block that begins like the rest of the request, if any, and how far."""
        if not self._config.prefix_caching or request.score_prompt:
            return None, 0
        start = len(request.chain) * self._config.block_size
        rest = request.token_ids[start : min(start + self._config.block_size, len(request.token_ids) - 1)]
        return self._cache.nearest(request.chain, request.cache_root, rest)
