"""The start-up proof: an engine repeats the golden prompts and its logits are compared with the record.

A prompt's recorded rows are reproduced as serving would: its first tokens in
one prefill, the last ones as single decode steps. So one comparison covers
both paths and the paged cache between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.engine_folder import GoldenPrompt
from gristmill.runtime.errors import InputError, IntegrityError
from gristmill.runtime.executors.base import Executor, ExecutorInfo, KVCacheConfig, KVDtype, SequenceStep

__all__ = [
    "COARSE_TOLERANCE",
    "DEFAULT_TOLERANCE",
    "GoldenReport",
    "PromptComparison",
    "compare_golden",
    "golden_cache",
    "golden_tolerance",
    "record_golden",
    "require_golden",
    "short_golden",
]

DEFAULT_TOLERANCE = 0.02
"""Largest KL in nats where none was recorded; bfloat16 noise on the demo model is a tenth of it."""

COARSE_TOLERANCE = 2.0
"""Largest KL in nats of a row with keys and values of 8 or 4 bits; what a damaged engine says is further."""

_BATCH_TOKENS = 2048
_BLOCK_SIZE = 16
_SHORT_ROWS = 2


@dataclass(frozen=True, slots=True)
class PromptComparison:
    """Recorded against produced rows of one prompt.

    KL is in nats, of the recorded distribution against the produced one;
    non-finite logits give infinity.
    """

    kl_mean: float
    kl_max: float
    max_logprob_difference: float
    top1_agreement: float


@dataclass(frozen=True, slots=True)
class GoldenReport:
    """All prompts' comparisons; passed if no row's KL exceeds `tolerance`."""

    prompts: tuple[PromptComparison, ...]
    tolerance: float

    @property
    def kl_mean(self) -> float:
        """Mean over prompts of each prompt's mean KL."""
        return float(np.mean([prompt.kl_mean for prompt in self.prompts]))

    @property
    def kl_max(self) -> float:
        """Largest KL of any row."""
        return max(prompt.kl_max for prompt in self.prompts)

    @property
    def max_logprob_difference(self) -> float:
        """Largest difference of any token's log-probability."""
        return max(prompt.max_logprob_difference for prompt in self.prompts)

    @property
    def top1_agreement(self) -> float:
        """Mean over prompts of the share of rows whose likeliest token is the recorded one."""
        return float(np.mean([prompt.top1_agreement for prompt in self.prompts]))

    @property
    def passed(self) -> bool:
        """Whether the engine gives what was recorded."""
        return self.kl_max <= self.tolerance


def record_golden(
    executor: Executor, prompts: Sequence[Sequence[int]], positions: int = 4, continuation: int = 16
) -> tuple[GoldenPrompt, ...]:
    """Run each prompt by itself and keep the logits of its last `positions` tokens.

    `continuation` tokens are added greedily. The executor must be idle: blocks
    from 0 on are overwritten. Raises InputError for a prompt that is empty or
    longer than the plan or the cache allow.
    """
    return tuple(_record(executor, tuple(prompt), positions, continuation) for prompt in prompts)


def short_golden(golden: Sequence[GoldenPrompt]) -> GoldenPrompt:
    """The shortest prompt, cut to one prefill and one decode: the proof that every start can afford."""
    shortest = min(golden, key=lambda prompt: len(prompt.token_ids))
    return replace(shortest, logits=shortest.logits[-_SHORT_ROWS:])


def golden_cache(golden: Sequence[GoldenPrompt], dtype: KVDtype) -> KVCacheConfig:
    """A cache in which the golden prompts run in few batches, and the longest fits at least."""
    blocks = [-(-len(prompt.token_ids) // _BLOCK_SIZE) for prompt in golden]
    together = max(max(blocks), min(sum(blocks), _BATCH_TOKENS // _BLOCK_SIZE))
    return KVCacheConfig(together, _BLOCK_SIZE, dtype)


def golden_tolerance(recorded: Mapping[tuple[str, str], float], info: ExecutorInfo) -> float:
    """The tolerance of an engine's compute and KV format: the recorded one, else `DEFAULT_TOLERANCE`.

    A KV format of 16 or 32 bits that was not recorded counts as bfloat16, the least exact of them; one
    of fewer bits, which was not measured with this model, gets `COARSE_TOLERANCE`.
    """
    if (info.compute, info.kv_cache) in recorded:
        return recorded[info.compute, info.kv_cache]
    if info.kv_cache in ("float16", "float32"):
        return recorded.get((info.compute, "bfloat16"), DEFAULT_TOLERANCE)
    return DEFAULT_TOLERANCE if info.kv_cache == "bfloat16" else COARSE_TOLERANCE


def compare_golden(executor: Executor, golden: Sequence[GoldenPrompt], tolerance: float) -> GoldenReport:
    """Run the golden prompts in mixed batches and compare each recorded row.

    The executor must be idle: blocks from 0 on are overwritten. Raises
    InputError if there is no golden prompt or one does not fit the cache.
    """
    if not golden:
        raise InputError("golden prompts", found="none", hint="build the artifact again")
    comparisons: list[PromptComparison] = []
    for group in _groups(executor, golden):
        produced = _replay(executor, [(prompt.token_ids, len(prompt.logits)) for prompt in group])
        comparisons += [_compare(prompt, rows) for prompt, rows in zip(group, produced, strict=True)]
    return GoldenReport(tuple(comparisons), tolerance)


def require_golden(executor: Executor, golden: Sequence[GoldenPrompt], tolerance: float) -> GoldenReport:
    """`compare_golden`, raising IntegrityError that says which prompt differs most and by how much."""
    report = compare_golden(executor, golden, tolerance)
    if report.passed:
        return report
    worst = max(range(len(golden)), key=lambda index: report.prompts[index].kl_max)
    comparison = report.prompts[worst]
    raise IntegrityError(
        f"engine {executor.info.name} does not give the artifact's golden logits: prompt {worst}",
        found=f"KL {comparison.kl_max:.3g} nats, log-probabilities off by up to "
        f"{comparison.max_logprob_difference:.3g}, top-1 agreement {comparison.top1_agreement:.0%}",
        expected=f"KL of at most {tolerance:g}",
        hint="don't serve it; compile the engine again on this machine",
    )


def _record(
    executor: Executor, token_ids: tuple[int, ...], positions: int, continuation: int
) -> GoldenPrompt:
    _check_fit(executor, len(token_ids), continuation)
    (logits,) = _replay(executor, [(token_ids, min(positions, len(token_ids)))])
    table = range(_blocks(executor, len(token_ids) + continuation))
    added = [int(logits[-1].argmax())] if continuation else []
    while len(added) < continuation:
        start = len(token_ids) + len(added) - 1
        row = executor.execute([SequenceStep(added[-1:], start, table)])
        added.append(int(row[0].argmax()))
    return GoldenPrompt(token_ids, logits, tuple(added))


def _replay(executor: Executor, prompts: Sequence[tuple[Sequence[int], int]]) -> list[NDArray[np.float32]]:
    """The logits of each prompt's last `rows` tokens: one prefill step, then decodes, all prompts at once."""
    tables: list[range] = []
    for token_ids, _ in prompts:
        first = tables[-1].stop if tables else 0
        tables.append(range(first, first + _blocks(executor, len(token_ids))))
    produced: list[list[NDArray[np.float32]]] = [[] for _ in prompts]
    for step in range(max(rows for _, rows in prompts)):
        active = [index for index, (_, rows) in enumerate(prompts) if step < rows]
        batch = [_step(prompts[index], step, tables[index]) for index in active]
        for index, row in zip(active, executor.execute(batch), strict=True):
            produced[index].append(row.copy())
    return [np.stack(rows) for rows in produced]


def _step(prompt: tuple[Sequence[int], int], step: int, table: range) -> SequenceStep:
    token_ids, rows = prompt
    prefill = len(token_ids) - rows + 1
    if step == 0:
        return SequenceStep(token_ids[:prefill], 0, table)
    start = prefill + step - 1
    return SequenceStep(token_ids[start : start + 1], start, table)


def _groups(executor: Executor, golden: Sequence[GoldenPrompt]) -> Iterator[list[GoldenPrompt]]:
    """Consecutive prompts that fit the cache, and a moderate batch, together."""
    group: list[GoldenPrompt] = []
    blocks = tokens = 0
    for prompt in golden:
        length = len(prompt.token_ids)
        _check_fit(executor, length, 0)
        needed = _blocks(executor, length)
        if group and (blocks + needed > executor.cache.num_blocks or tokens + length > _BATCH_TOKENS):
            yield group
            group, blocks, tokens = [], 0, 0
        group.append(prompt)
        blocks, tokens = blocks + needed, tokens + length
    yield group


def _blocks(executor: Executor, tokens: int) -> int:
    return -(-tokens // executor.cache.block_size)


def _check_fit(executor: Executor, length: int, continuation: int) -> None:
    limit = min(executor.plan.max_positions, executor.cache.num_blocks * executor.cache.block_size)
    if not 0 < length <= limit - continuation:
        raise InputError(
            "golden prompt",
            found=f"{length} tokens and {continuation} to add",
            expected=f"1 to {limit} tokens together",
        )


def _compare(prompt: GoldenPrompt, produced: NDArray[np.float32]) -> PromptComparison:
    agreement = float(np.mean(prompt.logits.argmax(axis=1) == produced.argmax(axis=1)))
    if not np.isfinite(produced).all():
        return PromptComparison(np.inf, np.inf, np.inf, agreement)
    recorded, found = _log_softmax(prompt.logits), _log_softmax(produced)
    kl = np.maximum((np.exp(recorded) * (recorded - found)).sum(axis=1), 0.0)
    difference = float(np.abs(recorded - found).max())
    return PromptComparison(float(kl.mean()), float(kl.max()), difference, agreement)


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)), dtype=np.float64)
