"""The experts of one block in a walk: which tokens each of them sees, and what its linears read.

An expert's statistics are those of the tokens that the router sends to it. For
one that gets fewer than the minimum, all tokens of the layer stand for those
that are missing: a Hessian of a handful of rows knows next to nothing of the
others that will come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from gristmill.calibration.drift import Drift, GroupStatistics
from gristmill.calibration.observers import InputObserver, group_name
from gristmill.runtime.executors.reference.linears import Schemes, Weights
from gristmill.runtime.executors.reference.mlp import gated_input, route
from gristmill.runtime.model_plan import MoePlan

__all__ = ["MIN_EXPERT_TOKENS", "ExpertInputs", "NormedRows"]

MIN_EXPERT_TOKENS = 1024
"""Tokens below which the other tokens of its layer count for an expert too; measured in `README.md`."""


@dataclass(frozen=True, slots=True, eq=False)
class NormedRows:
    """What the norm in front of the experts gives for the real tokens of one batch, [n, hidden].

    `original` is what it gives in the original model; None if that isn't followed.
    """

    rows: torch.Tensor
    original: torch.Tensor | None = None

    def select(self, tokens: torch.Tensor) -> NormedRows:
        """Those where `tokens`, bool [n], is true."""
        return NormedRows(self.rows[tokens], None if self.original is None else self.original[tokens])


class ExpertInputs:
    """Statistics of `plan.input_groups`, each asked for once its expert's earlier linears are quantized."""

    def __init__(
        self,
        plan: MoePlan,
        original: Weights,
        batches: Sequence[NormedRows],
        *,
        schemes: Schemes,
        min_tokens: int,
        keep_rows: int,
    ) -> None:
        """`original` are the weights before any expert is quantized; their router sends each token."""
        self._plan = plan
        self._original = original
        self._batches = batches
        self._schemes = schemes
        self._min_tokens = min_tokens
        self._keep_rows = keep_rows
        self._chosen = [route(plan, original, batch.rows)[0] for batch in batches]
        self._all_rows: GroupStatistics | None = None

    def group(self, index: int, weights: Weights) -> GroupStatistics:
        """Statistics of `plan.input_groups[index]`. Raises ModelError if an input isn't finite."""
        expert = index // 2
        if expert == len(self._plan.experts):
            return self._measure(index, weights, self._batches)
        sent = [(chosen == expert).any(dim=-1) for chosen in self._chosen]
        routed = sum(int(tokens.sum()) for tokens in sent)
        if routed == 0:
            return replace(self._of_all(index, weights), routed=0)
        own = [batch.select(tokens) for batch, tokens in zip(self._batches, sent, strict=True)]
        known = self._measure(index, weights, own)
        if routed < self._min_tokens:
            known = _blended(known, self._of_all(index, weights), routed / self._min_tokens)
        return replace(known, routed=routed)

    def _of_all(self, index: int, weights: Weights) -> GroupStatistics:
        """Statistics over all tokens of the layer; gates and ups of all experts read the same rows."""
        if index % 2:
            return self._measure(index, weights, self._batches)
        if self._all_rows is None:
            self._all_rows = self._measure(index, weights, self._batches)
        return self._all_rows

    def _measure(self, index: int, weights: Weights, batches: Sequence[NormedRows]) -> GroupStatistics:
        plan, group = self._plan.mlps[index // 2], self._plan.input_groups[index]
        tokens = sum(len(batch.rows) for batch in batches)
        keep_every = tokens // self._keep_rows | 1 if self._keep_rows else 0
        features = group[0].in_features
        observer = InputObserver(group_name(group), features, features, keep_every)
        for batch in batches:
            rows, original = batch.rows, batch.original
            if index % 2:  # a down projection
                rows = gated_input(plan, weights, rows, self._schemes)
                original = None if original is None else gated_input(plan, self._original, original)
            observer.update(rows, None if original is None else original.float().sub(rows))
        moments = observer.gap_moments()
        drift = None if moments is None else Drift(moments[0], inputs=moments[1])
        return GroupStatistics(observer.statistics(), drift)


def _blended(own: GroupStatistics, whole: GroupStatistics, share: float) -> GroupStatistics:
    """`share` of an expert's own statistics, and for the rest those of all tokens, its own among them."""
    mine, every = own.inputs, whole.inputs
    inputs = replace(
        every,
        hessian=every.hessian.lerp(mine.hessian, share),
        abs_mean=every.abs_mean.lerp(mine.abs_mean, share),
    )
    if own.drift is None or whole.drift is None:
        return GroupStatistics(inputs, whole.drift)
    assert own.drift.inputs is not None
    assert whole.drift.inputs is not None
    hessian = whole.drift.hessian.lerp(own.drift.hessian, share)
    return GroupStatistics(inputs, Drift(hessian, inputs=whole.drift.inputs.lerp(own.drift.inputs, share)))
