"""Round to nearest: the baseline that every other method has to beat."""

from __future__ import annotations

import torch

from gristmill.calibration.statistics import InputStatistics
from gristmill.pipeline.quantize.float4 import quantize_float4
from gristmill.pipeline.quantize.float8 import quantize_float8
from gristmill.pipeline.quantize.grids import min_max_grid, nearest_codes, quantized_tensor
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme

__all__ = ["quantize_rtn"]


def quantize_rtn(
    weight: torch.Tensor, statistics: InputStatistics | None, scheme: QuantScheme, *, name: str = "weight"
) -> QuantizedTensor:
    """Each weight to the nearest point of its group's min-max grid, or to the nearest float.

    `weight` is float32 [N, K]; the statistics are not used. Raises InputError
    for a group size that does not divide K.
    """
    del statistics
    if scheme.type == "float":
        quantize = quantize_float8 if scheme.bits == 8 else quantize_float4
        return quantize(weight, scheme, name=name)
    grid = min_max_grid(weight, scheme)
    return quantized_tensor(nearest_codes(weight, grid), grid, name)
