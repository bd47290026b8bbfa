"""The blocks of the paged cache: who may write where, by reference counts."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from gristmill.runtime.errors import InternalError

__all__ = ["BlockPool"]


class BlockPool:
    """Hands out block ids from 0 to `num_blocks - 1`, each free or held by one or more block tables."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0
        self._free = deque(range(num_blocks))
        self._references = [0] * num_blocks

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        return len(self._references)

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can still give."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, each with one reference; asking for more than `num_free` is a fault."""
        if count > len(self._free):
            raise InternalError("the block pool is empty", found=f"{self.num_free} free", expected=count)
        blocks = [self._free.popleft() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to blocks that are in use, for a second table that reads them."""
        for block in blocks:
            if self._references[block] == 0:
                raise InternalError("a free block can't be shared", found=f"block {block}")
            self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference from each block; a block without references is free again."""
        for block in blocks:
            if self._references[block] == 0:
                raise InternalError("a block was released twice", found=f"block {block}")
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free.append(block)

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise InternalError unless blocks are conserved.

        The laws: a block's references are the tables that hold it; the free
        list holds exactly the blocks without references, each once.
        """
        held = Counter(block for table in tables for block in table)
        for block, references in enumerate(self._references):
            if references != held[block]:
                raise InternalError(
                    f"block {block} lost count of its tables", found=references, expected=held[block]
                )
        unused = [block for block, references in enumerate(self._references) if references == 0]
        if sorted(self._free) != unused:
            raise InternalError("free blocks are not conserved", found=len(self._free), expected=len(unused))
