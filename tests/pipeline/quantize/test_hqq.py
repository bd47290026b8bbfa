"""HQQ against its slow twin, and against the min-max grid that it starts from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gristmill.pipeline.quantize.grids import dequantized, grouped
from gristmill.pipeline.quantize.hqq import hqq_grid, quantize_hqq, shrink
from gristmill.pipeline.quantize.rtn import quantize_rtn
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme

SCHEMES = [QuantScheme(bits, 16, symmetric) for bits in (3, 4) for symmetric in (True, False)]
by_name = pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)


def heavy_tailed(rows: int = 8) -> torch.Tensor:
    random = np.random.default_rng(0)
    return torch.from_numpy(random.standard_t(3, (rows, 48)).astype(np.float32))


def loss(weight: torch.Tensor, tensor: QuantizedTensor) -> torch.Tensor:
    errors = grouped(weight - dequantized(tensor, torch.float32), tensor.scheme)
    return errors.abs().pow(0.7).sum(-1)


def slow_hqq(group: NDArray[np.float32], scheme: QuantScheme) -> tuple[float, float]:
    """Scale and zero of one group, number by number, as the module's docstring says."""
    (scale, zero), beta = hqq_start(group, scheme), 10.0
    best, least = (scale, zero), measure(group, scale, zero, scheme)
    for _ in range(20):
        codes = [code(value, scale, zero, scheme) for value in group]
        kept = []
        for value, chosen in zip(group, codes, strict=True):
            error = value / scale - (chosen - zero)
            size = max(0.0, abs(error) - abs(error) ** -0.3 / beta) if error else 0.0
            kept.append(value - np.sign(error) * size * scale)
        steps = [chosen - zero for chosen in codes]
        power = sum(step * step for step in steps)
        fitted = sum(step * value for step, value in zip(steps, kept, strict=True)) / max(power, 1)
        if power > 0 and fitted > 0:
            scale = float(torch.tensor(fitted).bfloat16())
        if not scheme.symmetric:
            mean = np.mean([chosen - value / scale for chosen, value in zip(codes, kept, strict=True)])
            zero = float(np.clip(np.round(mean), 0, scheme.max_code))
        if (now := measure(group, scale, zero, scheme)) < least:
            best, least = (scale, zero), now
        beta *= 1.05
    return best


def hqq_start(group: NDArray[np.float32], scheme: QuantScheme) -> tuple[float, float]:
    tensor = quantize_rtn(torch.from_numpy(group)[None], None, QuantScheme(scheme.bits, -1, scheme.symmetric))
    zeros = tensor.zero_points
    return float(tensor.scales[0, 0]), float(scheme.midpoint if zeros is None else zeros[0, 0])


def code(value: float, scale: float, zero: float, scheme: QuantScheme) -> float:
    return float(np.clip(np.round(np.float32(value) / np.float32(scale)) + zero, 0, scheme.max_code))


def measure(group: NDArray[np.float32], scale: float, zero: float, scheme: QuantScheme) -> float:
    errors = [abs(value - (code(value, scale, zero, scheme) - zero) * scale) for value in group]
    return float(sum(error**0.7 for error in errors))


@by_name
def test_grids_are_as_good_as_those_of_the_slow_twin(scheme: QuantScheme) -> None:
    weight = heavy_tailed()
    found = loss(weight, quantize_hqq(weight, None, scheme))
    for row, groups in enumerate(grouped(weight, scheme).numpy()):
        for index, group in enumerate(groups):
            twin = measure(group, *slow_hqq(group, scheme), scheme)
            assert float(found[row, index]) == pytest.approx(twin, rel=0.02)


@by_name
def test_no_group_is_worse_than_rounded_to_nearest_and_all_together_are_better(scheme: QuantScheme) -> None:
    weight = heavy_tailed(64)
    hqq, rtn = (
        loss(weight, quantize_hqq(weight, None, scheme)),
        loss(weight, quantize_rtn(weight, None, scheme)),
    )
    assert (hqq <= rtn * 1.0001).all()
    assert hqq.sum() < 0.97 * rtn.sum()


def test_scales_are_stored_exactly_and_zero_points_are_codes() -> None:
    grid = hqq_grid(heavy_tailed(), SCHEMES[1])
    assert torch.equal(grid.scales, grid.scales.bfloat16().float())
    assert torch.equal(grid.zeros, grid.zeros.round().clamp(0, SCHEMES[1].max_code))


def test_a_group_of_zeros_stays_zero() -> None:
    tensor = quantize_hqq(torch.zeros(2, 48), None, SCHEMES[1])
    assert not dequantized(tensor, torch.float32).any()


def test_small_errors_are_not_kept_and_large_ones_nearly_whole() -> None:
    kept = shrink(torch.tensor([-5.0, 0.01, 0.0, 5.0]), beta=10.0)
    torch.testing.assert_close(kept, torch.tensor([-4.938, 0.0, 0.0, 4.938]), atol=1e-3, rtol=0)
