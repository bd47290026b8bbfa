"""What every executor does: one call a step over a mixed batch of sequences.

Block tables and token ids cross this boundary as plain integers, logits as
float32 numpy rows, so that the core above needs neither torch nor an engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.kv_scales import KVScales
from gristmill.runtime.model_plan import ModelPlan

__all__ = ["Executor", "ExecutorInfo", "KVCacheConfig", "KVDtype", "SequenceStep"]

KVDtype = Literal["float32", "bfloat16", "float16", "fp8", "int8", "int4"]


@dataclass(frozen=True, slots=True)
class KVCacheConfig:
    """The paged cache: `num_blocks` blocks of `block_size` tokens, in `dtype`."""

    num_blocks: int
    block_size: int = 16
    dtype: KVDtype = "bfloat16"


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """One sequence's share of a step: a decode (one token) or a chunk of prefill.

    `token_ids` are the new tokens, the first at position `start`; keys and
    values of positions below `start` are already in the cache. `block_table`
    holds at least `ceil((start + len(token_ids)) / block_size)` block ids.
    `logits` asks for no rows, the last token's row, or one row a token.
    """

    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    logits: Literal["none", "last", "all"] = "last"

    @property
    def num_logit_rows(self) -> int:
        """Rows that this entry contributes to the step's logits."""
        return len(self.token_ids) if self.logits == "all" else int(self.logits == "last")


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """What runs: shown in start logs, `/v1/models` and validation results.

    `kv_scales` are those with which an FP8 cache is read and written, if they were calibrated.
    """

    name: str
    compute: str
    kv_cache: KVDtype
    kernels: dict[str, str] = field(default_factory=dict)
    kv_scales: KVScales = ()


class Executor(Protocol):
    """Interprets a `ModelPlan` over a paged cache. One thread calls it.

    `execute` writes the new keys and values through each block table and
    returns the asked rows in batch order, float32 [rows, vocab_size]. The array
    is valid until the next call. Raises InputError for a token id, position
    or block outside the plan or the cache, before anything is written.
    `copy_blocks` copies keys and values over whole blocks, from the first of
    each pair to the second, one pair after the other. Raises InputError for a
    block outside the cache, before anything is written.
    """

    @property
    def plan(self) -> ModelPlan: ...

    @property
    def info(self) -> ExecutorInfo: ...

    @property
    def cache(self) -> KVCacheConfig: ...

    def execute(self, batch: Sequence[SequenceStep]) -> NDArray[np.float32]: ...

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None: ...

    def close(self) -> None: ...
