"""One decoder block in stages: each group of linears is observed behind those that are quantized already.

The order is that of execution: q, k, v; o; gate, up; down. A later group reads
what the earlier ones, quantized, really give. If the original model is
followed, each group also learns how far its input, or the residual stream that
it adds to, has drifted from the original's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from gristmill.calibration.drift import Drift, GroupStatistics
from gristmill.calibration.mixture import ExpertInputs, NormedRows
from gristmill.calibration.observers import InputObserver, group_name
from gristmill.calibration.pairs import BlockPair
from gristmill.calibration.statistics import InputStatistics
from gristmill.calibration.streams import Streams, run_block
from gristmill.runtime.executors.reference.blocks import causal_attention, rms_norm
from gristmill.runtime.executors.reference.linears import Schemes, Weights, linear
from gristmill.runtime.executors.reference.mlp import mlp_output
from gristmill.runtime.model_plan import AttentionPlan, LayerPlan, LinearPlan, MoePlan, NormPlan

__all__ = ["BlockStep"]

_QKV, _O, _GATE_UP, _DOWN = range(4)


class BlockStep:
    """A walk's stay at one block, from `BlockWalk.enter` to `leave`.

    Ask for the groups of `layer.input_groups` in order, each once, with all
    earlier ones quantized in `weights`; or for none of them. `pairs` comes last.
    """

    def __init__(self, streams: Streams, layer: LayerPlan, original: Weights) -> None:
        self._streams = streams
        self._layer = layer
        self._original_weights = original
        self._asked = 0
        self._followed = False
        self._inputs: list[torch.Tensor] = []  # of o, then of down
        self._middle: list[torch.Tensor] = []  # behind attention
        self._original_middle: list[torch.Tensor | None] = []
        self._experts: ExpertInputs | None = None

    def overview(self, weights: Weights) -> Mapping[tuple[str, ...], InputStatistics]:
        """Statistics of all groups at once, none of them quantized, over the sampled sequences."""
        return self._streams.observe(self._layer, weights, sample=True)

    def group(self, index: int, weights: Weights) -> GroupStatistics:
        """Statistics of `layer.input_groups[index]`. Raises ModelError if an input isn't finite."""
        assert index == self._asked, "groups are asked for in order"
        self._asked += 1
        if index >= _GATE_UP and isinstance(self._layer.mlp, MoePlan):
            if index == _GATE_UP:
                self._experts = self._enter_experts(self._layer.mlp, weights)
            assert self._experts is not None
            return self._experts.group(index - _GATE_UP, weights)
        stages: tuple[Callable[[Weights], GroupStatistics], ...] = (
            self._enter_attention,
            self._leave_attention,
            self._enter_mlp,
            self._leave_mlp,
        )
        return stages[index](weights)

    def pairs(self) -> tuple[BlockPair, ...]:
        """The whole block's inputs and the original's outputs, for every batch that is followed.

        Any weight of the block may change afterwards.
        """
        self._follow_original()
        self._inputs, self._middle, self._original_middle, self._experts = [], [], [], None
        streams = zip(self._streams.batches, self._streams.hidden, self._streams.original, strict=True)
        return tuple(BlockPair(batch, x, wanted) for batch, x, wanted in streams if wanted is not None)

    def leave(self, weights: Weights) -> None:
        """Move all samples behind the block, whose linears are all quantized in `weights`."""
        streams, layer, schemes = self._streams, self._layer, self._streams.schemes
        assert self._asked in (0, len(layer.input_groups)), "all groups are asked for, or none"
        self._follow_original()
        if not self._middle:
            outputs = [run_block(layer, weights, hidden, schemes=schemes) for hidden in streams.hidden]
        elif isinstance(layer.mlp, MoePlan):
            self._experts = None
            outputs = [
                x + mlp_output(layer.mlp, weights, self._normed(weights, x), schemes=schemes)
                for x in self._middle
            ]
        else:
            outputs = self._add(layer.mlp.down, weights, self._middle)
        streams.hidden[:] = outputs

    def _enter_attention(self, weights: Weights) -> GroupStatistics:
        streams = self._streams
        return self._behind_norm(_QKV, self._layer.input_norm, weights, streams.hidden, streams.original)

    def _leave_attention(self, weights: Weights) -> GroupStatistics:
        streams = self._streams
        self._follow_original()
        self._inputs = [
            _input_of(_O, self._layer, weights, hidden, streams.schemes) for hidden in streams.hidden
        ]
        return self._before_residual(_O, weights, streams.hidden, self._original_middle)

    def _enter_mlp(self, weights: Weights) -> GroupStatistics:
        self._middle = self._add(self._layer.attention.o, weights, self._streams.hidden)
        return self._behind_norm(_GATE_UP, self._layer.mlp_norm, weights, self._middle, self._original_middle)

    def _enter_experts(self, plan: MoePlan, weights: Weights) -> ExpertInputs:
        """Go behind attention, and send every token to its experts."""
        streams = self._streams
        self._middle = self._add(self._layer.attention.o, weights, streams.hidden)
        states = zip(streams.batches, self._middle, self._original_middle, strict=True)
        normed = [
            NormedRows(
                batch.rows(self._normed(weights, x)),
                None if wanted is None else batch.rows(self._normed(weights, wanted)),
            )
            for batch, x, wanted in states
        ]
        self._inputs, self._original_middle = [], []
        return streams.expert_inputs(plan, weights, normed, streams.schemes)

    def _normed(self, weights: Weights, states: torch.Tensor) -> torch.Tensor:
        norm = self._layer.mlp_norm
        return rms_norm(states, weights[f"{norm.name}.weight"], norm.eps)

    def _leave_mlp(self, weights: Weights) -> GroupStatistics:
        self._original_middle = []
        self._inputs = [
            _input_of(_DOWN, self._layer, weights, hidden, self._streams.schemes, mixed)
            for hidden, mixed in zip(self._streams.hidden, self._inputs, strict=True)
        ]
        return self._before_residual(_DOWN, weights, self._middle, self._streams.original)

    def _follow_original(self) -> None:
        """Move the original's stream behind the block, once, and keep what it was behind attention."""
        if self._followed:
            return
        self._followed = True
        layer, weights = self._layer, self._original_weights
        for index, hidden in enumerate(self._streams.original):
            if hidden is None:
                self._original_middle.append(None)
                continue
            mixed: list[torch.Tensor] = []

            def keep(
                group: tuple[LinearPlan, ...], inputs: torch.Tensor, into: list[torch.Tensor] = mixed
            ) -> None:
                if group == layer.input_groups[_O]:
                    into.append(inputs)

            self._streams.original[index] = run_block(layer, weights, hidden, keep)
            self._original_middle.append(hidden + linear(layer.attention.o, weights, mixed[0]))

    def _add(self, plan: LinearPlan, weights: Weights, residual: list[torch.Tensor]) -> list[torch.Tensor]:
        schemes = self._streams.schemes
        return [x + linear(plan, weights, y, schemes) for x, y in zip(residual, self._inputs, strict=True)]

    def _behind_norm(
        self,
        index: int,
        norm: NormPlan,
        weights: Weights,
        hidden: Sequence[torch.Tensor],
        original: Sequence[torch.Tensor | None],
    ) -> GroupStatistics:
        """Statistics of linears that read `norm`; their input should be what the original's would be."""
        group, scale = self._layer.input_groups[index], weights[f"{norm.name}.weight"]
        every = self._streams.keep_every(sample=False)
        observer = InputObserver(group_name(group), norm.size, norm.size, every)
        for batch, states, wanted in zip(self._streams.batches, hidden, original, strict=True):
            rows = batch.rows(rms_norm(states, scale, norm.eps))
            gap = None
            if wanted is not None:
                gap = batch.rows(rms_norm(wanted, scale, norm.eps)).float().sub_(rows)
            observer.update(rows, gap)
        moments = observer.gap_moments()
        drift = None if moments is None else Drift(moments[0], inputs=moments[1])
        return GroupStatistics(observer.statistics(), drift)

    def _before_residual(
        self,
        index: int,
        weights: Weights,
        residual: Sequence[torch.Tensor],
        original: Sequence[torch.Tensor | None],
    ) -> GroupStatistics:
        """Statistics of a linear that adds to `residual`; the sum should be `original`."""
        (plan,) = group = self._layer.input_groups[index]
        every = self._streams.keep_every(sample=False)
        observer = InputObserver(group_name(group), plan.in_features, plan.out_features, every)
        streams = zip(self._streams.batches, self._inputs, residual, original, strict=True)
        for batch, inputs, states, wanted in streams:
            gap = None
            if wanted is not None:
                # A new tensor: `float()` of float32 rows is the original's stream itself.
                gap = batch.rows(wanted).float() - batch.rows(states)
                gap.sub_(batch.rows(linear(plan, weights, inputs)))
            observer.update(batch.rows(inputs), gap)
        moments = observer.gap_moments()
        drift = None if moments is None else Drift(moments[0], outputs=moments[1])
        return GroupStatistics(observer.statistics(), drift)


class _Reached(Exception):
    """Carries the input that a block was run for."""

    def __init__(self, inputs: torch.Tensor) -> None:
        self.inputs = inputs
        super().__init__()


def _input_of(
    index: int,
    layer: LayerPlan,
    weights: Weights,
    hidden: torch.Tensor,
    schemes: Schemes,
    mixed: torch.Tensor | None = None,
) -> torch.Tensor:
    """What `layer.input_groups[index]` reads [B, T, K]; the block is run no further.

    `mixed` is attention's result if it is known already: it is not computed again.
    """
    group = layer.input_groups[index]
    if mixed is not None:  # what attention does to q and k is of no use then
        attention = replace(layer.attention, rope=None, q_norm=None, k_norm=None)
        layer = replace(layer, attention=attention)

    def stop(reached: tuple[LinearPlan, ...], inputs: torch.Tensor) -> None:
        if reached == group:
            raise _Reached(inputs)

    def replay(plan: AttentionPlan, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        assert mixed is not None
        return mixed.view(*mixed.shape[:-1], plan.num_heads, plan.head_dim)

    try:
        run_block(layer, weights, hidden, stop, causal_attention if mixed is None else replay, schemes)
    except _Reached as reached:
        return reached.inputs
    raise AssertionError("a block reads the inputs of all its groups")
