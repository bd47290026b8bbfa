"""The checks that every executor makes before a step writes anything."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.errors import InputError
from gristmill.runtime.executors.base import KVCacheConfig, SequenceStep
from gristmill.runtime.model_plan import ModelPlan

__all__ = ["FlatBatch", "check_batch", "check_copies"]

_LOGITS = ("none", "last", "all")


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """A checked batch, one entry after the other: its token ids, and the blocks that it reads or writes."""

    token_ids: NDArray[np.int32]
    block_ids: NDArray[np.int32]
    num_tokens: list[int]
    num_blocks: list[int]


def check_batch(plan: ModelPlan, cache: KVCacheConfig, batch: Sequence[SequenceStep]) -> FlatBatch:
    """Refuse a step that reaches outside the plan or the cache, or writes one block for two sequences.

    Raises InputError that names the entry's place in the batch. Blocks that are
    only read may be shared.
    """
    for index, entry in enumerate(batch):
        _check_sizes(f"batch entry {index}", plan, cache, entry)
    if not batch:
        return FlatBatch(np.empty(0, np.int32), np.empty(0, np.int32), [], [])
    tables = [entry.block_table[: _num_blocks(cache, entry)] for entry in batch]
    tokens = [entry.token_ids for entry in batch]
    flat = FlatBatch(
        _checked("token id", np.array(list(chain.from_iterable(tokens))), tokens, plan.vocab_size),
        _checked("block", np.concatenate([np.asarray(table) for table in tables]), tables, cache.num_blocks),
        list(map(len, tokens)),
        list(map(len, tables)),
    )
    _check_writers(cache, batch, tables)
    return flat


def check_copies(cache: KVCacheConfig, pairs: Sequence[tuple[int, int]]) -> None:
    """Refuse copies that reach outside the cache. Raises InputError that names the block."""
    for pair in pairs:
        _integers("copy: block", pair, cache.num_blocks)


def _check_sizes(where: str, plan: ModelPlan, cache: KVCacheConfig, entry: SequenceStep) -> None:
    length = len(entry.token_ids)
    if not length:
        raise InputError(f"{where}: token ids", found="none", expected="at least one")
    if entry.start < 0 or entry.start + length > plan.max_positions:
        raise InputError(
            f"{where}: positions",
            found=f"{entry.start} to {entry.start + length - 1}",
            expected=f"0 to {plan.max_positions - 1}",
        )
    if entry.logits not in _LOGITS:
        raise InputError(f"{where}: logits", found=repr(entry.logits), expected=", ".join(_LOGITS))
    needed = _num_blocks(cache, entry)
    if len(entry.block_table) < needed:
        raise InputError(
            f"{where}: block table", found=f"{len(entry.block_table)} blocks", expected=f"at least {needed}"
        )


def _num_blocks(cache: KVCacheConfig, entry: SequenceStep) -> int:
    """The blocks that hold this entry's positions; those behind them may be anything."""
    return -(-(entry.start + len(entry.token_ids)) // cache.block_size)


def _check_writers(
    cache: KVCacheConfig, batch: Sequence[SequenceStep], tables: Sequence[Sequence[int]]
) -> None:
    written = [table[entry.start // cache.block_size :] for entry, table in zip(batch, tables, strict=True)]
    if len(set(chain.from_iterable(written))) == sum(map(len, written)):
        return
    writers: dict[int, int] = {}
    for index, blocks in enumerate(written):
        for block in blocks:
            if block in writers:
                raise InputError(
                    f"batch entry {index}: block {block} is written twice in one step",
                    found=f"entries {writers[block]} and {index}",
                    expected="one writer a block",
                )
            writers[block] = index


def _checked(what: str, flat: NDArray[Any], parts: Sequence[Sequence[int]], limit: int) -> NDArray[np.int32]:
    """`flat`, the values of all parts; an error names the first that is no whole number below `limit`."""
    if flat.dtype.kind != "i" or flat.min() < 0 or flat.max() >= limit:
        checked = [_integers(f"batch entry {index}: {what}", part, limit) for index, part in enumerate(parts)]
        flat = np.concatenate(checked)
    return flat.astype(np.int32, copy=False)


def _integers(what: str, values: Iterable[int], limit: int) -> list[int]:
    integers = []
    for value in values:
        try:
            integers.append(operator.index(value))
        except TypeError as error:
            raise InputError(f"{what}s", found=str(error), expected="whole numbers") from error
        if not 0 <= integers[-1] < limit:
            raise InputError(what, found=value, expected=f"0 to {limit - 1}")
    return integers
