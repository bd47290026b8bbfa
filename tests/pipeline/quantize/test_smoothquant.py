"""SmoothQuant's scales: a twin of the search, exact folding, and what it gains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from gristmill.calibration.statistics import InputStatistics
from gristmill.pipeline.quantize.input_scale import input_scale
from gristmill.pipeline.quantize.smoothquant import SmoothQuantSettings, output_error, search_smoothing
from gristmill.runtime.errors import InputError, InternalError, ModelError
from gristmill.runtime.scheme import ActivationScheme, QuantScheme

W8A8 = QuantScheme(8, -1, True, activation=ActivationScheme("int", 8, "token", dynamic=True))
STATIC = replace(W8A8, activation=ActivationScheme("int", 8, "tensor", dynamic=False))
SETTINGS = SmoothQuantSettings()
StatisticsOf = Callable[[torch.Tensor], InputStatistics]


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.randn(24, 32, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def known(statistics_of: StatisticsOf) -> InputStatistics:
    """Inputs of which a few channels are far larger than the others."""
    rows = torch.randn(40, 32, generator=torch.Generator().manual_seed(0))
    rows[:, ::11] *= 60
    return replace(statistics_of(rows), rows=rows)


def twin_error(weight: torch.Tensor, rows: torch.Tensor, scales: torch.Tensor) -> float:
    """Token by token, each side rounded to its own steps."""
    scaled = weight * scales
    steps = (scaled.abs().amax(1, keepdim=True) / 127.5).bfloat16().float()
    rounded = (scaled / steps).round().clamp(-128, 127) * steps
    total = 0.0
    for row in rows:
        step = (row / scales).abs().max() / 127.5
        inputs = (row / scales / step).round().clamp(-128, 127) * step
        wanted = weight @ row
        total += float((rounded @ inputs - wanted).square().sum() / wanted.square().sum())
    return total / len(rows)


@pytest.mark.parametrize("exponent", [0.0, 1.0, -2.0])
def test_the_output_error_is_the_twins(weight: torch.Tensor, known: InputStatistics, exponent: float) -> None:
    assert known.rows is not None
    scales = torch.exp2(exponent * torch.arange(32).remainder(3))
    expected = twin_error(weight, known.rows, scales)
    assert output_error(weight, W8A8, known, scales) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("scheme", [W8A8, STATIC], ids=["dynamic", "static"])
def test_the_best_candidate_of_equation_4_is_chosen(
    weight: torch.Tensor, known: InputStatistics, scheme: QuantScheme
) -> None:
    found = search_smoothing([(weight, scheme)], known, SETTINGS)
    errors = [output_error(weight, scheme, known, torch.ones(32))]
    for step in range(11):
        raw = known.abs_max ** (step / 10) / weight.abs().amax(0) ** (1 - step / 10)
        scales = torch.exp2(torch.log2(raw / (raw.max() * raw.min()).sqrt()).round())
        errors.append(output_error(weight, scheme, known, scales))
    assert output_error(weight, scheme, known, found) == min(errors)
    assert min(errors) < 0.25 * errors[0]


def test_scales_are_powers_of_two_so_that_folding_is_exact(
    weight: torch.Tensor, known: InputStatistics
) -> None:
    scales = search_smoothing([(weight, W8A8)], known, SETTINGS)
    assert torch.equal(torch.frexp(scales).mantissa, torch.full((32,), 0.5))
    narrow = weight.bfloat16()
    folded = (narrow.float() * scales).bfloat16()
    assert torch.equal((folded.float() / scales).bfloat16(), narrow)


def test_even_inputs_are_left_as_they_are_or_lose_less(
    weight: torch.Tensor, statistics_of: StatisticsOf
) -> None:
    rows = torch.ones(8, 32)
    even = replace(statistics_of(rows), rows=rows)
    found = search_smoothing([(weight, W8A8)], even, SETTINGS)
    assert output_error(weight, W8A8, even, found) <= output_error(weight, W8A8, even, torch.ones(32))


def test_channels_without_input_do_not_go_to_extremes(weight: torch.Tensor, known: InputStatistics) -> None:
    assert known.rows is not None
    rows = known.rows.clone()
    rows[:, 4] = 0
    silent = replace(known, rows=rows, abs_max=rows.abs().amax(0))
    scales = search_smoothing([(weight, W8A8)], silent, SETTINGS)
    assert torch.isfinite(scales).all()
    assert float(scales.max() / scales.min()) < 1e6


def test_shared_channels_stay_equal(weight: torch.Tensor, known: InputStatistics) -> None:
    def share(scales: torch.Tensor) -> torch.Tensor:
        return scales.view(2, 16).amax(0).repeat(2)

    scales = search_smoothing([(weight, W8A8)], known, SETTINGS, share)
    assert torch.equal(scales[:16], scales[16:])


@pytest.mark.parametrize("side", ["weight", "rows"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused_by_name(
    weight: torch.Tensor, known: InputStatistics, side: str, value: float
) -> None:
    assert known.rows is not None
    (weight if side == "weight" else known.rows)[3, 5] = value
    with pytest.raises(ModelError, match=r"of layers\.0\.q.*not finite"):
        search_smoothing([(weight, W8A8)], known, SETTINGS, name="layers.0.q")


def test_a_search_without_rows_is_our_own_fault(weight: torch.Tensor, known: InputStatistics) -> None:
    with pytest.raises(InternalError, match="no rows were kept"):
        search_smoothing([(weight, W8A8)], replace(known, rows=None), SETTINGS)


@pytest.mark.parametrize("field", ["strengths", "sample_rows"])
def test_settings_are_checked(field: str) -> None:
    with pytest.raises(InputError, match=f"SmoothQuant {field}"):
        SmoothQuantSettings(**{field: 0})


def test_a_static_scale_holds_the_largest_value_or_a_percentile(known: InputStatistics) -> None:
    assert known.rows is not None
    largest = float(known.abs_max.max()) / 127.5
    assert input_scale(known, STATIC, 100, name="q") == pytest.approx(largest, rel=2**-8)
    middle = float(known.rows.abs().flatten().sort().values[639]) / 127.5
    assert input_scale(known, STATIC, 50, name="q") == pytest.approx(middle, rel=2**-8)


def test_a_static_scale_that_is_not_finite_is_refused_by_name(known: InputStatistics) -> None:
    broken = replace(known, abs_max=torch.full((32,), float("inf")))
    with pytest.raises(ModelError, match=r"the input of layers\.0\.q"):
        input_scale(broken, STATIC, 100, name="layers.0.q")
