"""How much the model loses when one unit alone is quantized, for each width that it may get.

Each unit is measured once, at the first width, as the block's output really
changes. The other widths follow from the error of the unit's own output, which
the input's second moments give without running the block. Both after GPTQ has
made up for what it can: rounding to nearest overrates large groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from gristmill.calibration.drift import GroupStatistics
from gristmill.calibration.pairs import BlockPair
from gristmill.calibration.statistics import InputStatistics
from gristmill.pipeline.quantize.block import DATA_FREE, QuantizeSettings, quantize_block, served_weights
from gristmill.pipeline.quantize.gptq import factorize_hessian, quantize_gptq
from gristmill.pipeline.quantize.grids import dequantized
from gristmill.pipeline.quantize.rtn import quantize_rtn
from gristmill.pipeline.search.gradients import BlockGradients
from gristmill.pipeline.search.units import Unit, Width, with_widths
from gristmill.recipes.quantize import Method
from gristmill.runtime.executors.reference.linears import Weights
from gristmill.runtime.model_plan import LayerPlan
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme

__all__ = ["layer_losses"]

_SAMPLED_ROWS = 128
"""Of each linear, about: enough for the ratio between widths, at a small part of GPTQ's time."""

GroupInputs = Mapping[tuple[str, ...], InputStatistics]


@dataclass(frozen=True, slots=True, eq=False)
class _Original:
    """What is known of a block's inputs when nothing is quantized; nothing drifts."""

    layer: LayerPlan
    inputs: GroupInputs

    @property
    def by_linear(self) -> Mapping[str, InputStatistics]:
        """The statistics of what each linear reads."""
        return {name: statistics for names, statistics in self.inputs.items() for name in names}

    def overview(self, weights: Weights) -> GroupInputs:
        """See `BlockObservations`."""
        return self.inputs

    def group(self, index: int, weights: Weights) -> GroupStatistics:
        """See `BlockObservations`."""
        return GroupStatistics(self.by_linear[self.layer.input_groups[index][0].name])

    def pairs(self) -> Sequence[BlockPair]:
        """See `BlockObservations`; no method of a search learns."""
        return ()


def layer_losses(
    layer: LayerPlan,
    units: Sequence[Unit],
    weights: Weights,
    inputs: GroupInputs,
    settings: QuantizeSettings,
    widths: Sequence[Width],
    gradients: BlockGradients,
) -> list[tuple[float, ...]]:
    """The loss of each of a layer's `units` at each of `widths`, in nats a token.

    `inputs` holds the statistics of the layer's input groups, `weights` the
    original's block in float32. Units are rounded by GPTQ, or to nearest for
    methods without data. Raises ModelError, naming the linear, for what isn't finite.
    """
    known = _Original(layer, inputs)
    losses = []
    for unit in units:
        narrow = quantize_block(layer, weights, known, _alone(unit, widths[0], settings))
        loss = gradients.loss(layer, served_weights(weights, narrow))
        errors = _output_errors(unit, weights, known.by_linear, settings, widths)
        losses.append(tuple(loss * error / errors[0] if errors[0] > 0 else 0.0 for error in errors))
    return losses


def _alone(unit: Unit, width: Width, settings: QuantizeSettings) -> QuantizeSettings:
    """Settings that quantize `unit` alone."""
    schemes = {linear.name: settings.schemes[linear.name] for linear in unit.linears}
    method: Method = "rtn" if settings.method in DATA_FREE else "gptq"
    return replace(settings, method=method, schemes=with_widths(schemes, [unit], [width]))


def _output_errors(
    unit: Unit,
    weights: Weights,
    inputs: Mapping[str, InputStatistics],
    settings: QuantizeSettings,
    widths: Sequence[Width],
) -> list[float]:
    """The squared error of the unit's outputs at each width, from a part of the rows: none needs another."""
    errors = [0.0] * len(widths)
    for linear in unit.linears:
        scheme, statistics = settings.schemes[linear.name], inputs[linear.name]
        assert scheme is not None  # a unit's linears are quantized
        weight = weights[linear.weight].float()
        rows = weight[:: max(len(weight) // _SAMPLED_ROWS, 1)].contiguous()
        share = len(rows) / len(weight)
        rounded = _rounding(rows, statistics, settings, linear.name)
        for place, width in enumerate(widths):
            lost = dequantized(rounded(width.of(scheme)), torch.float32).sub_(rows)
            errors[place] += max(float(((lost @ statistics.hessian) * lost).sum()), 0.0) / share
    return errors


def _rounding(
    weight: torch.Tensor, statistics: InputStatistics, settings: QuantizeSettings, name: str
) -> Callable[[QuantScheme], QuantizedTensor]:
    """Rounds `weight` to a scheme; what all schemes share is computed once."""
    if settings.method in DATA_FREE:
        return lambda scheme: quantize_rtn(weight, None, scheme, name=name)
    factor = factorize_hessian(statistics.hessian, settings.gptq, name=name)
    return lambda scheme: quantize_gptq(weight, statistics, scheme, settings.gptq, factor=factor, name=name)
