"""How much the model loses when one unit alone is quantized, for each width that it may get.

Each unit is measured at one width, as the block's output really changes. Other
widths follow from the error of the unit's own output, without running the block:
it is a mean over many more numbers, so that small differences show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from gristmill.calibration.drift import GroupStatistics
from gristmill.calibration.pairs import BlockPair
from gristmill.calibration.statistics import InputStatistics
from gristmill.pipeline.quantize.block import (
    DATA_FREE,
    BlockObservations,
    BlockResult,
    QuantizeSettings,
    quantize_block,
    served_weights,
)
from gristmill.pipeline.quantize.grids import dequantized
from gristmill.pipeline.quantize.rtn import quantize_rtn
from gristmill.pipeline.search.gradients import BlockGradients
from gristmill.pipeline.search.units import Unit, Width, with_widths
from gristmill.recipes.quantize import Method
from gristmill.runtime.executors.reference.linears import Weights
from gristmill.runtime.model_plan import LayerPlan

__all__ = ["layer_losses"]

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
    enter: Callable[[], BlockObservations],
    settings: QuantizeSettings,
    widths: Sequence[Width],
    gradients: BlockGradients,
) -> list[tuple[float, ...]]:
    """The loss of each of a layer's `units` at each of `widths`, whose bits rise, in nats a token.

    `inputs` holds the statistics of the layer's input groups, `weights` the
    original's block. Methods that fold scales, and so change what the linears
    read, don't need the former: `enter` goes into the block anew for them. Units
    are rounded by the method itself, for `signround` by GPTQ. Raises ModelError,
    naming the linear, for what isn't finite.
    """
    known = _Original(layer, inputs)
    middle = _middle(widths)
    losses = []
    for unit in units:
        rounded = {
            width.group_size: quantize_block(
                layer,
                weights,
                enter() if settings.folds_scales else known,
                _alone(unit, width, settings),
            )
            for width in middle
        }
        served = served_weights(weights, rounded[middle[-1].group_size])
        loss = gradients.loss(layer, {name: tensor.float() for name, tensor in served.items()})
        if settings.method in DATA_FREE:
            errors = [_rounding_error(unit, weights, known.by_linear, settings, width) for width in widths]
        else:
            errors = [_output_error(rounded[width.group_size], width.bits) for width in widths]
        error = errors[widths.index(middle[-1])]
        losses.append(tuple(loss * other / error if error > 0 else 0.0 for other in errors))
    return losses


def _middle(widths: Sequence[Width]) -> list[Width]:
    """The widths that are tried: all group sizes at bits near to what most units get."""
    bits = sorted({width.bits for width in widths})
    return [width for width in widths if width.bits == bits[(len(bits) - 1) // 2]]


def _alone(unit: Unit, width: Width, settings: QuantizeSettings) -> QuantizeSettings:
    """Settings that quantize `unit` alone."""
    schemes = {linear.name: settings.schemes[linear.name] for linear in unit.linears}
    method: Method = "gptq" if settings.method == "signround" else settings.method
    return replace(settings, method=method, schemes=with_widths(schemes, [unit], [width]))


def _output_error(rounded: BlockResult, bits: int) -> float:
    """The output error of a unit at `bits`, up to a factor, from that at some bits.

    It is in proportion to the square of the grid's step.
    """
    return sum(rounded.errors.values()) / ((1 << bits) - 1) ** 2


def _rounding_error(
    unit: Unit,
    weights: Weights,
    inputs: Mapping[str, InputStatistics],
    settings: QuantizeSettings,
    width: Width,
) -> float:
    """The output error of rounding the unit's linears to nearest.

    Such errors are independent from column to column, so that the Hessian's diagonal tells.
    """
    error = 0.0
    for linear in unit.linears:
        scheme = settings.schemes[linear.name]
        assert scheme is not None  # a unit's linears are quantized
        weight = weights[linear.weight].float()
        rounded = quantize_rtn(weight, None, width.of(scheme), name=linear.name)
        lost = dequantized(rounded, torch.float32).sub_(weight).square_()
        error += float((lost @ inputs[linear.name].hessian.diagonal()).sum())
    return error
