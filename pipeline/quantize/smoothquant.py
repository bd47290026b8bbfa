"""SmoothQuant (Xiao et al. 2022, arXiv 2211.10438): move the outliers of a linear's input into its weights.

A channel that is divided by s in the input and multiplied by it in the weight
leaves the product as it is, and evens out what shares a scale. The scales are
the paper's equation 4,

    s_j = max|x_j|^a / max|w_j|^(1-a),

with the migration strength a searched for each layer by the output error of
really quantizing both sides, not fixed. They are rounded to powers of two, so
that folding them away changes no bit of what they are folded into.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from gristmill.calibration.statistics import InputStatistics
from gristmill.pipeline.quantize.grids import dequantized
from gristmill.pipeline.quantize.input_scale import input_scale
from gristmill.pipeline.quantize.rtn import quantize_rtn
from gristmill.runtime.errors import InputError, InternalError, ModelError
from gristmill.runtime.executors.reference.activations import fake_quantize
from gristmill.runtime.scheme import QuantScheme

__all__ = ["SmoothQuantSettings", "output_error", "search_smoothing"]

_SMALLEST_PART = 1e-4
"""Channels below this part of the largest count as that large, so that no scale goes to extremes."""


@dataclass(frozen=True, slots=True)
class SmoothQuantSettings:
    """How SmoothQuant searches.

    strengths    steps of the migration strength between 0 and 1; no smoothing is tried too
    sample_rows  rows of a weight that the search looks at
    """

    strengths: int = 10
    sample_rows: int = 512

    def __post_init__(self) -> None:
        for field in ("strengths", "sample_rows"):
            if getattr(self, field) < 1:
                raise InputError(f"SmoothQuant {field}", found=getattr(self, field), expected="at least 1")


def search_smoothing(
    parts: Sequence[tuple[torch.Tensor, QuantScheme]],
    statistics: InputStatistics,
    settings: SmoothQuantSettings,
    share: Callable[[torch.Tensor], torch.Tensor] = lambda scales: scales,
    *,
    name: str = "weight",
) -> torch.Tensor:
    """Input scales, float32 [K], all powers of two, with which `parts` together lose least.

    parts  weights, float32 [N, K], that read the same input, with their schemes
    share  applied to each candidate, to tie channels that have to be equal

    Leaving the channels as they are is always among the candidates. Raises
    ModelError, naming the linears, if an error is not finite.
    """
    if not all(torch.isfinite(weight).all() for weight, _ in parts):
        raise ModelError(f"a weight of {name} is not finite")
    largest = torch.cat([weight for weight, _ in parts]).abs().amax(0)
    sampled = [
        _part(weight[:: max(1, len(weight) // settings.sample_rows)], scheme, statistics)
        for weight, scheme in parts
    ]
    best = torch.ones_like(largest)
    least = _error(sampled, statistics, best)
    if not least < torch.inf:
        raise ModelError(f"the output error of {name} with quantized inputs is not finite", found=least)
    for candidate in _candidates(statistics.abs_max, largest, settings.strengths):
        shared = share(candidate)
        scales = torch.exp2(torch.log2(shared / (shared.max() * shared.min()).sqrt()).round_())
        if (error := _error(sampled, statistics, scales)) < least:
            best, least = scales, error
    return best


def output_error(
    weight: torch.Tensor, scheme: QuantScheme, statistics: InputStatistics, scales: torch.Tensor
) -> float:
    """The mean over the kept rows of |Q(x / s) Q(w s)^T - x w^T|^2 / |x w^T|^2, weights to the nearest."""
    return _error([_part(weight, scheme, statistics)], statistics, scales)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A weight, and what it gives for the kept rows x as it is: x w^T, the same for every candidate."""

    weight: torch.Tensor
    scheme: QuantScheme
    rows: torch.Tensor
    wanted: torch.Tensor


def _part(weight: torch.Tensor, scheme: QuantScheme, statistics: InputStatistics) -> _Part:
    if statistics.rows is None:
        raise InternalError("no rows were kept to measure an output error")
    return _Part(weight, scheme, statistics.rows, statistics.rows @ weight.T)


def _error(parts: Sequence[_Part], statistics: InputStatistics, scales: torch.Tensor) -> float:
    return sum(_part_error(part, statistics, scales) for part in parts)


def _part_error(part: _Part, statistics: InputStatistics, scales: torch.Tensor) -> float:
    stored = None
    if part.scheme.is_static:
        smooth = replace(statistics, abs_max=statistics.abs_max / scales, rows=None)
        stored = torch.tensor([input_scale(smooth, part.scheme, 100, name="a linear")])
    inputs = fake_quantize(part.rows / scales, part.scheme, stored)
    rounded = dequantized(
        quantize_rtn(part.weight * scales, None, replace(part.scheme, activation=None)), torch.float32
    )
    lost = (inputs @ rounded.T).sub_(part.wanted).square_().sum(-1)
    whole = part.wanted.square().sum(-1).clamp_(min=torch.finfo(torch.float32).tiny)
    return float((lost / whole).mean())


def _candidates(
    largest_inputs: torch.Tensor, largest_weights: torch.Tensor, strengths: int
) -> Iterator[torch.Tensor]:
    """Equation 4 at each strength."""
    inputs, weights = _floored(largest_inputs), _floored(largest_weights)
    for step in range(strengths + 1):
        strength = step / strengths
        yield inputs**strength / weights ** (1 - strength)


def _floored(sizes: torch.Tensor) -> torch.Tensor:
    return sizes.clamp(min=max(_SMALLEST_PART * float(sizes.max()), torch.finfo(torch.float32).tiny))
