"""The checks that every executor makes before a step writes anything."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

from gristmill.runtime.errors import InputError
from gristmill.runtime.executors.base import KVCacheConfig, SequenceStep
from gristmill.runtime.model_plan import ModelPlan

__all__ = ["check_batch", "check_copies"]

_LOGITS = ("none", "last", "all")


def check_batch(plan: ModelPlan, cache: KVCacheConfig, batch: Sequence[SequenceStep]) -> None:
    """Refuse a step that reaches outside the plan or the cache, or writes one block for two sequences.

    Raises InputError that names the entry's place in the batch. Blocks that are
    only read may be shared.
    """
    writers: dict[int, int] = {}
    for index, entry in enumerate(batch):
        where = f"batch entry {index}"
        _check_tokens(where, plan, entry)
        used = _check_blocks(where, cache, entry)
        for block in used[entry.start // cache.block_size :]:
            if block in writers:
                raise InputError(
                    f"{where}: block {block} is written twice in one step",
                    found=f"entries {writers[block]} and {index}",
                    expected="one writer a block",
                )
            writers[block] = index


def check_copies(cache: KVCacheConfig, pairs: Sequence[tuple[int, int]]) -> None:
    """Refuse copies that reach outside the cache. Raises InputError that names the block."""
    for block in _integers("blocks to copy", (block for pair in pairs for block in pair)):
        _check_block("copy", cache, block)


def _check_tokens(where: str, plan: ModelPlan, entry: SequenceStep) -> None:
    tokens = _integers(f"{where}: token ids", entry.token_ids)
    if not tokens:
        raise InputError(f"{where}: token ids", found="none", expected="at least one")
    if min(tokens) < 0 or max(tokens) >= plan.vocab_size:
        wrong = next(token for token in tokens if not 0 <= token < plan.vocab_size)
        raise InputError(f"{where}: token id", found=wrong, expected=f"0 to {plan.vocab_size - 1}")
    if entry.start < 0 or entry.start + len(tokens) > plan.max_positions:
        raise InputError(
            f"{where}: positions",
            found=f"{entry.start} to {entry.start + len(tokens) - 1}",
            expected=f"0 to {plan.max_positions - 1}",
        )
    if entry.logits not in _LOGITS:
        raise InputError(f"{where}: logits", found=repr(entry.logits), expected=", ".join(_LOGITS))


def _check_blocks(where: str, cache: KVCacheConfig, entry: SequenceStep) -> list[int]:
    """The blocks that hold this entry's positions."""
    needed = -(-(entry.start + len(entry.token_ids)) // cache.block_size)
    if len(entry.block_table) < needed:
        raise InputError(
            f"{where}: block table", found=f"{len(entry.block_table)} blocks", expected=f"at least {needed}"
        )
    used = _integers(f"{where}: block table", entry.block_table[:needed])
    if min(used) < 0 or max(used) >= cache.num_blocks:
        for block in used:
            _check_block(where, cache, block)
    return used


def _check_block(where: str, cache: KVCacheConfig, block: int) -> None:
    if not 0 <= block < cache.num_blocks:
        raise InputError(f"{where}: block", found=block, expected=f"0 to {cache.num_blocks - 1}")


def _integers(what: str, values: Iterable[int]) -> list[int]:
    try:
        return [operator.index(value) for value in values]
    except TypeError as error:
        raise InputError(what, found=str(error), expected="whole numbers") from error
