"""AWQ (Lin et al. 2023, arXiv 2306.00978): scale up the input channels that matter before rounding.

A column that is multiplied by s before rounding and whose input is divided by s
has its rounding error divided by s. The scales come from a search over
activation and weight magnitudes (the paper's equation 4 and its two-sided
form), measured by the output error tr(E H E^T) rather than by running the
model; clipping is searched for each group with the Hessian's diagonal blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from gristmill.calibration.statistics import InputStatistics
from gristmill.pipeline.quantize.grids import (
    grouped,
    min_max_grid,
    nearest_codes,
    quantized_tensor,
    searched_grid,
)
from gristmill.runtime.errors import InputError, ModelError
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme

__all__ = ["AwqSettings", "hessian_blocks", "quantize_awq", "search_scales"]


@dataclass(frozen=True, slots=True)
class AwqSettings:
    """How AWQ searches.

    exponents    steps of the scale search between no scaling and full scaling
    search_clip  choose each group's range by its output error, not by min and max
    sample_rows  rows of a weight that the scale search looks at
    """

    exponents: int = 20
    search_clip: bool = True
    sample_rows: int = 1024

    def __post_init__(self) -> None:
        for field in ("exponents", "sample_rows"):
            if getattr(self, field) < 1:
                raise InputError(f"AWQ setting {field}", found=getattr(self, field), expected="at least 1")


def quantize_awq(
    weight: torch.Tensor,
    statistics: InputStatistics,
    scheme: QuantScheme,
    settings: AwqSettings | None = None,
    *,
    name: str = "weight",
) -> QuantizedTensor:
    """A weight, float32 [N, K], whose scales are folded in already, to the nearest codes.

    Raises ModelError, naming the linear, if the Hessian or a scale is not finite.
    """
    settings = settings or AwqSettings()
    if not torch.isfinite(statistics.hessian).all():
        raise ModelError(f"the Hessian of {name} is not finite")
    if settings.search_clip:
        size = weight.shape[1] // scheme.num_groups(weight.shape[1])
        grid = searched_grid(weight, scheme, hessian_blocks(statistics.hessian, size))
    else:
        grid = min_max_grid(weight, scheme)
    return quantized_tensor(nearest_codes(weight, grid), grid, name)


def hessian_blocks(hessian: torch.Tensor, size: int) -> torch.Tensor:
    """The diagonal blocks [G, size, size] of `hessian` [K, K]."""
    groups = hessian.shape[0] // size
    index = torch.arange(groups)
    return hessian.view(groups, size, groups, size)[index, :, index]


def search_scales(
    parts: Sequence[tuple[torch.Tensor, QuantScheme]],
    statistics: InputStatistics,
    settings: AwqSettings,
    share: Callable[[torch.Tensor], torch.Tensor] = lambda scales: scales,
) -> torch.Tensor:
    """Input scales, float32 [K], that make the output error of all `parts` together least.

    parts  weights, float32 [N, K], that read the same input, with their schemes
    share  applied to each candidate, to tie channels that have to be equal

    Leaving the channels as they are is always among the candidates.
    """
    parts = [(weight[:: max(1, len(weight) // settings.sample_rows)], scheme) for weight, scheme in parts]
    hessian = statistics.hessian
    best = torch.ones(hessian.shape[0])
    least = sum(_output_error(weight, hessian, best, scheme) for weight, scheme in parts)
    for candidate in _candidates(parts, statistics, settings.exponents):
        scales = share(candidate / (candidate.max() * candidate.min()).sqrt())
        error = sum(_output_error(weight, hessian, scales, scheme) for weight, scheme in parts)
        if error < least:
            best, least = scales, error
    return best


def _candidates(
    parts: Sequence[tuple[torch.Tensor, QuantScheme]], statistics: InputStatistics, exponents: int
) -> Iterator[torch.Tensor]:
    inputs = _floored(statistics.abs_mean)
    relative = [_relative_size(weight, scheme) for weight, scheme in parts]
    weights = _floored(torch.cat(relative).mean(0))
    for step in range(1, exponents + 1):
        exponent = step / exponents
        yield inputs**exponent
        if step < exponents:
            yield inputs**exponent / weights ** (1 - exponent)


def _floored(sizes: torch.Tensor) -> torch.Tensor:
    """`sizes` with channels that are next to nothing lifted, so that no scale goes to extremes."""
    return sizes.clamp(min=max(1e-4 * float(sizes.max()), torch.finfo(torch.float32).tiny))


def _relative_size(weight: torch.Tensor, scheme: QuantScheme) -> torch.Tensor:
    """|w| as a part of the largest in its group, [N, K]."""
    sizes = grouped(weight.abs(), scheme)
    return (sizes / sizes.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)).view_as(weight)


def _output_error(
    weight: torch.Tensor, hessian: torch.Tensor, scales: torch.Tensor, scheme: QuantScheme
) -> float:
    """tr(E H E^T) of rounding `weight` with its columns scaled."""
    scaled = weight * scales
    grid = min_max_grid(scaled, scheme)
    values = grouped(nearest_codes(scaled, grid), scheme)
    rounded = values.sub_(grid.zeros[..., None]).mul_(grid.scales[..., None]).view_as(weight)
    errors = (rounded / scales).sub_(weight)
    return float(((errors @ hessian) * errors).sum())
