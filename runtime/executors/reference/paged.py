"""Attention over a paged cache: where a step's tokens lie, and which of them are computed together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from gristmill.runtime.executors.base import KVDtype, SequenceStep
from gristmill.runtime.executors.reference.blocks import attend_masked, causal_attention, visible
from gristmill.runtime.executors.reference.kv_twin import keys_through_cache, values_through_cache
from gristmill.runtime.model_plan import AttentionPlan

__all__ = ["LayerCache", "StepLayout", "lay_out", "paged_attention"]

_MOST_GATHERED_POSITIONS = 65_536


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's keys and values, each `[num_blocks, block_size, kv_heads, head_dim]`.

    `dtype` is how they are stored, or, where the tensors are wider, have been rounded; the scales, one a
    KV head, are those of fp8.
    """

    dtype: KVDtype
    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor
    value_scales: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Group:
    """Sequences with equally many new tokens, whose attention is one call.

    rows       int64 [B, T]   where the new tokens stand in the flattened step
    positions  int64 [B, T]   their positions
    tables     int64 [B, n]   block ids, short tables padded with block 0
    context    positions that the longest sequence attends to
    padding    bool [B, context, 1, 1], true behind the end of a shorter sequence; None if there is none
    """

    rows: torch.Tensor
    positions: torch.Tensor
    tables: torch.Tensor
    context: int
    padding: torch.Tensor | None

    @property
    def is_whole_prompt(self) -> bool:
        return self.rows.shape == (1, self.context)


@dataclass(frozen=True, slots=True)
class StepLayout:
    """A step's tokens, flattened in batch order.

    token_ids   int64 [tokens]
    positions   int64 [tokens]
    slots       int64 [tokens], block id * block size + offset of each token's key and value
    logit_rows  int64 [rows], the tokens whose logits were asked for
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    logit_rows: torch.Tensor
    groups: tuple[_Group, ...]


def lay_out(batch: Sequence[SequenceStep], block_size: int) -> StepLayout:
    """Flatten a batch (checked before) and group it for attention."""
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logit_rows: list[int] = []
    first_rows: list[int] = []
    for entry in batch:
        first_rows.append(len(token_ids))
        token_ids.extend(entry.token_ids)
        span = range(entry.start, entry.start + len(entry.token_ids))
        positions.extend(span)
        slots.extend(entry.block_table[p // block_size] * block_size + p % block_size for p in span)
        logit_rows.extend(range(len(token_ids) - entry.num_logit_rows, len(token_ids)))
    groups = tuple(
        _make_group([batch[i] for i in members], [first_rows[i] for i in members], block_size)
        for members in _members(batch)
    )
    return StepLayout(
        token_ids=torch.tensor(token_ids, dtype=torch.int64),
        positions=torch.tensor(positions, dtype=torch.int64),
        slots=torch.tensor(slots, dtype=torch.int64),
        logit_rows=torch.tensor(logit_rows, dtype=torch.int64),
        groups=groups,
    )


def paged_attention(
    layout: StepLayout,
    cache: LayerCache,
    plan: AttentionPlan,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
) -> torch.Tensor:
    """Write k and v [tokens, KV, D] to their slots, then attend from q [tokens, H, D] by group.

    Keys and values are always read back from the cache, so that a prompt means
    the same whether it came at once or in chunks.
    """
    keys = keys_through_cache(k, cache.dtype, cache.key_scales)
    values = values_through_cache(v, cache.dtype, cache.value_scales)
    cache.keys.flatten(0, 1).index_copy_(0, layout.slots, keys)
    cache.values.flatten(0, 1).index_copy_(0, layout.slots, values)
    mixed = torch.empty_like(q)
    for group in layout.groups:
        keys, values = _gather(group, cache.keys, q.dtype), _gather(group, cache.values, q.dtype)
        rows = group.rows.flatten()
        queries = q.index_select(0, rows).view(*group.rows.shape, *q.shape[1:])
        if group.is_whole_prompt:
            result = causal_attention(plan, queries, keys, values)
        else:
            result = attend_masked(plan, queries, keys, values, _mask(group, plan.sliding_window))
        mixed.index_copy_(0, rows, result.flatten(0, 1))
    return mixed


def _gather(group: _Group, cache: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The cached positions of each sequence, [B, context, KV, D]; zeros behind the end of a shorter one.

    What a block held before must not be multiplied, not even by a weight of
    zero: it may be infinite.
    """
    blocks = cache.index_select(0, group.tables.flatten())
    gathered = blocks.view(len(group.tables), -1, *cache.shape[2:])[:, : group.context].to(dtype)
    return gathered if group.padding is None else gathered.masked_fill(group.padding, 0)


def _mask(group: _Group, window: int | None) -> torch.Tensor | None:
    """Which positions each new token sees, bool [B, T, context]; None if that is all of them."""
    decoding = group.rows.shape[1] == 1
    if decoding and group.padding is None and (window is None or group.context <= window):
        return None
    return visible(group.positions, torch.arange(group.context), window)


def _members(batch: Sequence[SequenceStep]) -> Iterator[list[int]]:
    """Batch indices of each group: every prefill alone, decodes with others of about their length."""
    decodes: dict[int, list[int]] = defaultdict(list)
    for index, entry in enumerate(batch):
        if len(entry.token_ids) == 1:
            decodes[entry.start.bit_length()].append(index)
        else:
            yield [index]
    for bits, members in decodes.items():
        most = max(1, _MOST_GATHERED_POSITIONS >> bits)
        yield from (members[first : first + most] for first in range(0, len(members), most))


def _make_group(entries: Sequence[SequenceStep], first_rows: Sequence[int], block_size: int) -> _Group:
    new = torch.arange(len(entries[0].token_ids))
    starts = torch.tensor([entry.start for entry in entries], dtype=torch.int64)
    contexts = starts + len(new)
    context = int(contexts.max())
    tables = torch.zeros((len(entries), -(-context // block_size)), dtype=torch.int64)
    for row, entry in zip(tables, entries, strict=True):
        used = -(-(entry.start + len(new)) // block_size)
        row[:used] = torch.tensor(entry.block_table[:used], dtype=torch.int64)
    padding = torch.arange(context) >= contexts[:, None]
    return _Group(
        rows=torch.tensor(first_rows, dtype=torch.int64)[:, None] + new,
        positions=starts[:, None] + new,
        tables=tables,
        context=context,
        padding=padding[:, :, None, None] if bool(padding.any()) else None,
    )
