"""The experts of one block in a walk: which tokens each of them sees, and what its linears read.

An expert's statistics are those of the tokens that the router sends to it. One
that gets fewer than the minimum is measured over all tokens of the layer: a
Hessian of a handful of rows knows next to nothing of the others that will come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gristmill.calibration.drift import Drift, GroupStatistics
from gristmill.calibration.observers import InputObserver, group_name
from gristmill.runtime.executors.reference.linears import Schemes, Weights
from gristmill.runtime.executors.reference.mlp import gated_input, route
from gristmill.runtime.model_plan import MoePlan

__all__ = ["MIN_EXPERT_TOKENS", "ExpertInputs", "NormedRows"]

MIN_EXPERT_TOKENS = 256
"""Tokens below which an expert is measured over all tokens of its layer."""


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

    def group(self, index: int, weights: Weights) -> GroupStatistics:
        """Statistics of `plan.input_groups[index]`. Raises ModelError if an input isn't finite."""
        expert, is_down = divmod(index, 2)
        plan, group = self._plan.mlps[expert], self._plan.input_groups[index]
        batches, routed = self._batches_of(expert)
        tokens = sum(len(batch.rows) for batch in batches)
        keep_every = tokens // self._keep_rows | 1 if self._keep_rows else 0
        features = group[0].in_features
        observer = InputObserver(group_name(group), features, features, keep_every)
        for batch in batches:
            rows, original = batch.rows, batch.original
            if is_down:
                rows = gated_input(plan, weights, rows, self._schemes)
                original = None if original is None else gated_input(plan, self._original, original)
            observer.update(rows, None if original is None else original.float().sub(rows))
        moments = observer.gap_moments()
        drift = None if moments is None else Drift(moments[0], inputs=moments[1])
        return GroupStatistics(observer.statistics(), drift, routed)

    def _batches_of(self, expert: int) -> tuple[Sequence[NormedRows], int | None]:
        """What an expert is measured over, and how many tokens are sent to it; None for the shared one."""
        if expert == len(self._plan.experts):
            return self._batches, None
        sent = [(chosen == expert).any(dim=-1) for chosen in self._chosen]
        routed = sum(int(tokens.sum()) for tokens in sent)
        if routed < self._min_tokens:
            return self._batches, routed
        return [batch.select(tokens) for batch, tokens in zip(self._batches, sent, strict=True)], routed
