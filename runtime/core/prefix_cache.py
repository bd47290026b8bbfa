"""Which blocks hold which tokens: a tree of full blocks, so that prompts that begin alike share them.

A block's keys and values depend on all tokens before it, so its place in the
tree is the exact chain of token ids from the root. Nothing is matched by a hash alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from gristmill.runtime.errors import InternalError

__all__ = ["CachedBlock", "PrefixCache"]

_MOST_COMPARED = 32


@dataclass(slots=True, eq=False)
class _Root:
    key: Hashable
    children: dict[tuple[int, ...], CachedBlock] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class CachedBlock:
    """A full block: the tokens in it, what comes before and after, and whether it is still there."""

    block: int
    tokens: tuple[int, ...]
    parent: CachedBlock | _Root
    children: dict[tuple[int, ...], CachedBlock] = field(default_factory=dict)
    is_cached: bool = True


class PrefixCache:
    """An index of computed blocks of `block_size` tokens; who holds them is the block pool's matter.

    Requests with different `root` keys never share. A chain is the list of
    cached blocks from the root on; whoever has one may keep it, since a block
    goes before the blocks that it continues: the last one tells for all.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._roots: dict[Hashable, _Root] = {}
        self._blocks: dict[int, CachedBlock] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._blocks

    def __len__(self) -> int:
        return len(self._blocks)

    def extend(
        self, chain: list[CachedBlock], root: Hashable, token_ids: Sequence[int], most_blocks: int
    ) -> None:
        """Bring a chain up to date: what was evicted goes, what came joins, `most_blocks` in all."""
        while chain and (not chain[-1].is_cached or len(chain) > most_blocks):
            chain.pop()
        children = self._children(chain, root)
        while len(chain) < most_blocks:
            found = children.get(self.block_tokens(token_ids, len(chain)))
            if found is None:
                break
            chain.append(found)
            children = found.children

    def nearest(
        self, chain: Sequence[CachedBlock], root: Hashable, tokens: Sequence[int]
    ) -> tuple[CachedBlock | None, int]:
        """The block after `chain` that begins most like `tokens`, and how many tokens they share.

        Looks at the newest blocks only, so that many continuations of one prompt cost no more than a few.
        """
        best, shared = None, 0
        for child in islice(reversed(self._children(chain, root).values()), _MOST_COMPARED):
            length = _common_length(child.tokens, tokens)
            if length > shared:
                best, shared = child, length
        return best, shared

    def insert(
        self, chain: list[CachedBlock], root: Hashable, tokens: tuple[int, ...], block: int
    ) -> CachedBlock:
        """Add what comes after `chain` to it: `block`, or the block that has the same tokens already."""
        assert len(tokens) == self._block_size
        parent = chain[-1] if chain else self._roots.setdefault(root, _Root(root))
        found = parent.children.get(tokens)
        if found is None:
            found = CachedBlock(block, tokens, parent)
            parent.children[tokens] = found
            self._blocks[block] = found
        chain.append(found)
        return found

    def evict(self, block: int) -> None:
        """Forget a block; one that others continue is still needed, and a fault of the caller."""
        node = self._blocks[block]
        if node.children:
            raise InternalError("a cached block goes before its continuations", found=f"block {block}")
        del self._blocks[block]
        node.is_cached = False
        del node.parent.children[node.tokens]
        if isinstance(node.parent, _Root) and not node.parent.children:
            del self._roots[node.parent.key]

    def clear(self) -> None:
        """Forget everything."""
        for node in self._blocks.values():
            node.is_cached = False
        self._blocks.clear()
        self._roots.clear()

    def parent_of(self, block: int) -> int | None:
        """The block that `block` continues; None for a prompt's first."""
        parent = self._blocks[block].parent
        return parent.block if isinstance(parent, CachedBlock) else None

    def block_tokens(self, token_ids: Sequence[int], index: int) -> tuple[int, ...]:
        """The tokens of a sequence's block `index`."""
        return tuple(token_ids[index * self._block_size : (index + 1) * self._block_size])

    def check_integrity(self) -> None:
        """Raise InternalError unless the tree holds exactly the indexed blocks, each once and full."""
        reached = [node for root in self._roots.values() for node in _descendants(root)]
        if len(reached) != len(self._blocks) or any(self._blocks.get(n.block) is not n for n in reached):
            raise InternalError(
                "the prefix cache's tree and its index disagree",
                found=f"{len(reached)} blocks in the tree",
                expected=f"{len(self._blocks)}",
            )
        for node in reached:
            if not node.is_cached or len(node.tokens) != self._block_size:
                raise InternalError("a cached block is not whole", found=f"block {node.block}")
        if not all(root.children for root in self._roots.values()):
            raise InternalError("the prefix cache keeps a root without blocks")

    def _children(self, chain: Sequence[CachedBlock], root: Hashable) -> dict[tuple[int, ...], CachedBlock]:
        if chain:
            return chain[-1].children
        found = self._roots.get(root)
        return {} if found is None else found.children


def _descendants(root: _Root) -> Iterator[CachedBlock]:
    pending: list[_Root | CachedBlock] = [root]
    while pending:
        node = pending.pop()
        for tokens, child in node.children.items():
            if child.parent is not node or child.tokens != tokens:
                raise InternalError("a cached block is at the wrong place", found=f"block {child.block}")
            pending.append(child)
            yield child


def _common_length(left: Sequence[int], right: Sequence[int]) -> int:
    for length, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return length
    return min(len(left), len(right))
