"""One decoder block in stages: each group of linears is observed behind those that are quantized already.

The order is that of execution: q, k, v; o; gate, up; down. A later group reads
what the earlier ones, quantized, really give. If the original model is
followed, each group also learns how far its input, or the residual stream that
it adds to, has drifted from the original's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from gristmill.calibration.drift import Drift, GroupStatistics
from gristmill.calibration.observers import CrossObserver, InputObserver
from gristmill.calibration.statistics import InputStatistics
from gristmill.calibration.streams import Streams, group_name, run_block
from gristmill.runtime.executors.reference.blocks import Weights, linear, rms_norm
from gristmill.runtime.model_plan import LayerPlan, LinearPlan, NormPlan

__all__ = ["BlockStep"]

_QKV, _O, _GATE_UP, _DOWN = range(4)


class BlockStep:
    """A walk's stay at one block, from `BlockWalk.enter` to `leave`.

    Ask for `group(0)` to `group(3)` in order, each once, with all earlier
    groups quantized in `weights`; or for none of them.
    """

    def __init__(self, streams: Streams, layer: LayerPlan, original: Weights) -> None:
        self._streams = streams
        self._layer = layer
        self._original_weights = original
        self._asked = 0
        self._inputs: list[torch.Tensor] = []  # of o, then of down
        self._middle: list[torch.Tensor] = []  # behind attention
        self._original_middle: list[torch.Tensor] = []

    def overview(self, weights: Weights, stride: int = 1) -> Mapping[tuple[str, ...], InputStatistics]:
        """Statistics of all groups at once, none of them quantized, over every `stride`-th sequence."""
        return self._streams.observe(self._layer, weights, stride)

    def group(self, index: int, weights: Weights) -> GroupStatistics:
        """Statistics of `layer.input_groups[index]`. Raises ModelError if an input isn't finite."""
        assert index == self._asked, "groups are asked for in order"
        self._asked += 1
        stages: tuple[Callable[[Weights], GroupStatistics], ...] = (
            self._enter_attention,
            self._leave_attention,
            self._enter_mlp,
            self._leave_mlp,
        )
        return stages[index](weights)

    def leave(self, weights: Weights) -> None:
        """Move all samples behind the block, whose linears are all quantized in `weights`."""
        streams, layer = self._streams, self._layer
        if streams.original is not None and self._asked <= _O:
            self._follow_original(streams.original)
        if self._asked == 0:
            streams.hidden[:] = [run_block(layer, weights, hidden) for hidden in streams.hidden]
            return
        assert self._asked == len(layer.input_groups), "all groups are asked for, or none"
        streams.hidden[:] = self._add(layer.mlp.down, weights, self._middle)

    def _enter_attention(self, weights: Weights) -> GroupStatistics:
        streams = self._streams
        return self._behind_norm(_QKV, self._layer.input_norm, weights, streams.hidden, streams.original)

    def _leave_attention(self, weights: Weights) -> GroupStatistics:
        streams = self._streams
        if streams.original is not None:
            self._follow_original(streams.original)
        self._run_up_to(_O, weights)
        return self._before_residual(_O, weights, streams.hidden, self._original_middle)

    def _enter_mlp(self, weights: Weights) -> GroupStatistics:
        self._middle = self._add(self._layer.attention.o, weights, self._streams.hidden)
        original = self._original_middle or None
        return self._behind_norm(_GATE_UP, self._layer.mlp_norm, weights, self._middle, original)

    def _leave_mlp(self, weights: Weights) -> GroupStatistics:
        self._original_middle = []
        self._run_up_to(_DOWN, weights)
        return self._before_residual(_DOWN, weights, self._middle, self._streams.original or [])

    def _follow_original(self, original: list[torch.Tensor]) -> None:
        layer, weights = self._layer, self._original_weights
        for index, hidden in enumerate(original):
            mixed: list[torch.Tensor] = []

            def keep(
                group: tuple[LinearPlan, ...], inputs: torch.Tensor, into: list[torch.Tensor] = mixed
            ) -> None:
                if group == layer.input_groups[_O]:
                    into.append(inputs)

            original[index] = run_block(layer, weights, hidden, keep)
            self._original_middle.append(hidden + linear(layer.attention.o, weights, mixed[0]))

    def _run_up_to(self, index: int, weights: Weights) -> None:
        group = self._layer.input_groups[index]
        self._inputs = [_input_of(group, self._layer, weights, hidden) for hidden in self._streams.hidden]

    def _add(self, plan: LinearPlan, weights: Weights, residual: list[torch.Tensor]) -> list[torch.Tensor]:
        return [x + linear(plan, weights, y) for x, y in zip(residual, self._inputs, strict=True)]

    def _behind_norm(
        self,
        index: int,
        norm: NormPlan,
        weights: Weights,
        hidden: list[torch.Tensor],
        original: list[torch.Tensor] | None,
    ) -> GroupStatistics:
        group = self._layer.input_groups[index]
        features, scale = group[0].in_features, weights[f"{norm.name}.weight"]
        observer = InputObserver(group_name(group), features)
        gap = CrossObserver(group_name(group), features, features)
        for position, batch in enumerate(self._streams.batches):
            rows = batch.rows(rms_norm(hidden[position], scale, norm.eps))
            observer.update(rows)
            if original is not None:
                wanted = batch.rows(rms_norm(original[position], scale, norm.eps))
                gap.update(wanted.float().sub_(rows), rows)
        drift = None if original is None else Drift(inputs=gap.mean())
        return GroupStatistics(observer.statistics(), drift)

    def _before_residual(
        self, index: int, weights: Weights, residual: list[torch.Tensor], wanted: list[torch.Tensor]
    ) -> GroupStatistics:
        group = self._layer.input_groups[index]
        (plan,) = group
        observer = InputObserver(group_name(group), plan.in_features)
        gap = CrossObserver(group_name(group), plan.out_features, plan.in_features)
        for position, batch in enumerate(self._streams.batches):
            rows = batch.rows(self._inputs[position])
            observer.update(rows)
            if wanted:
                missing = batch.rows(wanted[position]).float().sub_(batch.rows(residual[position]))
                gap.update(missing - weights[f"{plan.name}.bias"] if plan.bias else missing, rows)
        drift = Drift(outputs=gap.mean()) if wanted else None
        return GroupStatistics(observer.statistics(), drift)


class _Reached(Exception):
    """Carries the input that a block was run for."""

    def __init__(self, inputs: torch.Tensor) -> None:
        self.inputs = inputs
        super().__init__()


def _input_of(
    group: tuple[LinearPlan, ...], layer: LayerPlan, weights: Weights, hidden: torch.Tensor
) -> torch.Tensor:
    """What `group` reads [B, T, K]; the block is run no further."""

    def stop(reached: tuple[LinearPlan, ...], inputs: torch.Tensor) -> None:
        if reached == group:
            raise _Reached(inputs)

    try:
        run_block(layer, weights, hidden, stop)
    except _Reached as reached:
        return reached.inputs
    raise AssertionError("a block reads the inputs of all its groups")
