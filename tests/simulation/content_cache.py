"""A paged cache that holds no keys and values but what they stand for: every token up to their position."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.runtime.core.request import Request
from gristmill.runtime.core.step_plan import Chunk, StepPlan

__all__ = ["ContentCache"]

_MASK = (1 << 61) - 1


class ContentCache:
    """An executor that checks what it reads.

    A slot holds a number made of the salt and of all tokens up to its position,
    as the writer found them in the cache. A block that was shared, copied,
    evicted or overwritten wrongly shows as another number.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._size = block_size
        self._slots = [[0] * block_size for _ in range(num_blocks)]
        self._expected: dict[str, list[int]] = {}

    def execute(self, plan: StepPlan) -> None:
        """Copy, then read and write each chunk. AssertionError where a request reads another's tokens."""
        for source, target in plan.copies:
            self._slots[target] = list(self._slots[source])
        written: set[int] = set()
        for chunk in plan.chunks:
            self._check(chunk)
        for chunk in plan.chunks:
            blocks = self._write(chunk)
            assert written.isdisjoint(blocks), "two requests write to one block"
            written |= blocks
        for chunk in plan.chunks:  # writers have not disturbed each other
            self._check(chunk, read=chunk.length)

    def forget(self, request: Request) -> None:
        """A request has ended."""
        self._expected.pop(request.request_id, None)

    def _check(self, chunk: Chunk, read: int = 0) -> None:
        """The last slot of each block before the end of what is there."""
        request, end = chunk.request, chunk.start + read
        expected = self._numbers(request)
        places = [*range(self._size - 1, end, self._size)] + ([end - 1] if end else [])
        for place in places:
            found = self._slots[request.block_table[place // self._size]][place % self._size]
            assert found == expected[place], f"{request.request_id} reads other tokens at position {place}"

    def _write(self, chunk: Chunk) -> set[int]:
        request = chunk.request
        place = chunk.start - 1
        table = request.block_table
        number = (
            self._slots[table[place // self._size]][place % self._size] if place >= 0 else _start(request)
        )
        blocks = set()
        for position in range(chunk.start, chunk.start + chunk.length):
            number = _next(number, request.token_ids[position])
            block = table[position // self._size]
            self._slots[block][position % self._size] = number
            blocks.add(block)
        return blocks

    def _numbers(self, request: Request) -> Sequence[int]:
        """What each position of a request should hold."""
        numbers = self._expected.setdefault(request.request_id, [])
        number = numbers[-1] if numbers else _start(request)
        for token in request.token_ids[len(numbers) :]:
            number = _next(number, token)
            numbers.append(number)
        return numbers


def _start(request: Request) -> int:
    return sum(map(ord, request.cache_salt)) + 1


def _next(number: int, token: int) -> int:
    return (number * 1_000_003 + token + 1) & _MASK
