"""How much the model loses when one unit alone is quantized, for each width that it may get.

Each unit is measured once, at the narrowest width, as the block's output really
changes. The other widths follow from the error of the unit's own output, which
the input's second moments give without running the block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from gristmill.calibration.drift import GroupStatistics
from gristmill.calibration.pairs import BlockPair
from gristmill.calibration.statistics import InputStatistics
from gristmill.pipeline.quantize.block import QuantizeSettings, quantize_block, served_weights
from gristmill.pipeline.quantize.grids import dequantized
from gristmill.pipeline.quantize.rtn import quantize_rtn
from gristmill.pipeline.search.gradients import BlockGradients
from gristmill.pipeline.search.units import Unit, with_widths
from gristmill.recipes.quantize import Method
from gristmill.runtime.executors.reference.linears import Weights
from gristmill.runtime.model_plan import LayerPlan

__all__ = ["layer_losses"]

_DATA_FREE = ("rtn", "hqq")

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
    widths: Sequence[int],
    gradients: BlockGradients,
) -> list[tuple[float, ...]]:
    """The loss of each of a layer's `units` at each of `widths`, rising, in nats a token.

    `inputs` holds the statistics of the layer's input groups, `weights` the
    original's block in float32. Units are rounded by GPTQ, or to nearest for
    methods without data; errors at other widths are those of rounding to
    nearest. Raises ModelError, naming the linear, for what isn't finite.
    """
    known = _Original(layer, inputs)
    losses = []
    for unit in units:
        narrow = quantize_block(layer, weights, known, _alone(unit, widths[0], settings))
        loss = gradients.loss(layer, served_weights(weights, narrow))
        errors = [_rounding_error(unit, weights, known.by_linear, settings, bits) for bits in widths]
        losses.append(tuple(loss * error / errors[0] if errors[0] > 0 else 0.0 for error in errors))
    return losses


def _alone(unit: Unit, bits: int, settings: QuantizeSettings) -> QuantizeSettings:
    """Settings that quantize `unit` alone."""
    schemes = {linear.name: settings.schemes[linear.name] for linear in unit.linears}
    method: Method = "rtn" if settings.method in _DATA_FREE else "gptq"
    return replace(settings, method=method, schemes=with_widths(schemes, [unit], [bits]))


def _rounding_error(
    unit: Unit,
    weights: Weights,
    inputs: Mapping[str, InputStatistics],
    settings: QuantizeSettings,
    bits: int,
) -> float:
    """The output error of rounding the unit's linears to nearest.

    Such errors are independent from column to column, so that the Hessian's diagonal tells.
    """
    error = 0.0
    for linear in unit.linears:
        scheme = settings.schemes[linear.name]
        assert scheme is not None  # a unit's linears are quantized
        weight = weights[linear.weight].float()
        rounded = quantize_rtn(weight, None, replace(scheme, bits=bits), name=linear.name)
        lost = dequantized(rounded, torch.float32).sub_(weight).square_()
        error += float((lost @ inputs[linear.name].hessian.diagonal()).sum())
    return error
