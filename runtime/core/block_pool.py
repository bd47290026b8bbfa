"""The blocks of the paged cache: who may write where, by reference counts."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence

from gristmill.runtime.core.prefix_cache import PrefixCache
from gristmill.runtime.errors import InternalError

__all__ = ["BlockPool"]


class BlockPool:
    """Hands out block ids from 0 to `num_blocks - 1`, each free or held by one or more block tables.

    A prompt's blocks are reserved, as a number, when it enters, and taken as it
    is read: until then they may keep a cached prefix. A block that `index` knows
    keeps its contents when nobody holds it any more, and is given away last:
    after all others, the one unused longest first. A table gives its blocks back
    from the end and holds all blocks that its own continue, so in that order a
    block always comes before the one it continues.
    """

    def __init__(self, num_blocks: int, index: PrefixCache) -> None:
        assert num_blocks > 0
        self._free = deque(range(num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._references = [0] * num_blocks
        self._num_reserved = 0
        self._index = index

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        return len(self._references)

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds and nobody has reserved, cached ones included."""
        return self._num_unheld - self._num_reserved

    @property
    def num_held(self) -> int:
        """Blocks in one or more tables."""
        return self.num_blocks - self._num_unheld

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and whose contents are still indexed."""
        return len(self._cached)

    def references(self, block: int) -> int:
        """Tables that hold `block`."""
        return self._references[block]

    def reserve(self, count: int) -> None:
        """Keep `count` of the free blocks for later; asking for more than `num_free` is a fault."""
        self._require_free(count)
        self._num_reserved += count

    def cancel(self, count: int) -> None:
        """Give back `count` reserved blocks that were not taken."""
        if count > self._num_reserved:
            raise InternalError("blocks were not reserved", found=self._num_reserved, expected=count)
        self._num_reserved -= count

    def allocate(self, count: int, reserved: int = 0) -> list[int]:
        """Take `count` blocks, `reserved` of them reserved before, each with one reference.

        Asking for more than those and `num_free` is a fault.
        """
        self.cancel(reserved)
        self._require_free(count)
        blocks = [self._free.popleft() if self._free else self._evict() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to blocks that are in use or cached, for a further table that reads them."""
        for block in blocks:
            if self._references[block] == 0:
                if block not in self._cached:
                    raise InternalError("a free block can't be shared", found=f"block {block}")
                del self._cached[block]
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference from each block, the last first; without references it is free again."""
        for block in reversed(blocks):
            if self._references[block] == 0:
                raise InternalError("a block was released twice", found=f"block {block}")
            self._references[block] -= 1
            if self._references[block]:
                continue
            if block in self._index:
                self._cached[block] = None
            else:
                self._free.append(block)

    def forget_cached(self) -> None:
        """Clear the index, so that no block's contents are found any more."""
        self._index.clear()
        self._free.extend(self._cached)
        self._cached.clear()

    def check_integrity(self, tables: Iterable[Sequence[int]], num_reserved: int = 0) -> None:
        """Raise InternalError unless blocks are conserved.

        The laws: a block's references are the tables that hold it; a block
        without references is cached if it is indexed and free if not, each once;
        `num_reserved`, what all requests together have reserved, is there; of
        two cached blocks the continuation is evicted first.
        """
        if self._num_reserved != num_reserved or self.num_free < 0:
            raise InternalError(
                "reserved blocks are not conserved",
                found=f"{self._num_reserved} with {self.num_free} free beside them",
                expected=num_reserved,
            )
        held = Counter(block for table in tables for block in table)
        for block, references in enumerate(self._references):
            if references != held[block]:
                raise InternalError(
                    f"block {block} lost count of its tables", found=references, expected=held[block]
                )
        unused = [block for block, references in enumerate(self._references) if references == 0]
        if sorted((*self._free, *self._cached)) != unused:
            raise InternalError("free blocks are not conserved", found=self._num_unheld, expected=len(unused))
        if any(block in self._index for block in self._free):
            raise InternalError("a free block is indexed")
        self._check_eviction_order()

    @property
    def _num_unheld(self) -> int:
        return len(self._free) + len(self._cached)

    def _require_free(self, count: int) -> None:
        if count > self.num_free:
            raise InternalError("the block pool is empty", found=f"{self.num_free} free", expected=count)

    def _check_eviction_order(self) -> None:
        evicted: set[int] = set()
        for block in self._cached:
            if block not in self._index:
                raise InternalError("a cached block is not indexed", found=f"block {block}")
            if self._index.parent_of(block) in evicted:
                raise InternalError("a cached block outlives the one it continues", found=f"block {block}")
            evicted.add(block)

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        self._index.evict(block)
        return block
