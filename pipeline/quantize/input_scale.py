"""The stored scale of a layer's input, for static activations."""

from __future__ import annotations

import math

from gristmill.calibration.statistics import InputStatistics
from gristmill.pipeline.quantize.grids import finite_scales, storable_scales
from gristmill.runtime.errors import InternalError
from gristmill.runtime.executors.reference.activations import input_range
from gristmill.runtime.scheme import QuantScheme

__all__ = ["input_scale"]


def input_scale(statistics: InputStatistics, scheme: QuantScheme, percentile: float, *, name: str) -> float:
    """The scale at which `percentile` of the input's values, by size, are in range.

    At 100 it is the largest value of all calibration tokens, else one among
    the kept rows. Raises ModelError, naming the linear, if it can't be stored.
    """
    if percentile == 100:
        largest = statistics.abs_max.max()
    else:
        if statistics.rows is None:
            raise InternalError(f"no rows were kept of the input of {name}")
        sizes = statistics.rows.abs().flatten()
        largest = sizes.kthvalue(math.ceil(percentile / 100 * sizes.numel())).values
    scale = storable_scales(largest.view(1) / input_range(scheme), scheme)
    return float(finite_scales(scale, scheme, f"the input of {name}"))
