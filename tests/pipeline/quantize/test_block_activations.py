"""A block whose inputs are quantized: what it returns, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch

from gristmill.calibration.drift import GroupStatistics
from gristmill.calibration.pairs import BlockPair
from gristmill.calibration.statistics import InputStatistics
from gristmill.pipeline.quantize.block import QuantizeSettings, quantize_block, served_weights
from gristmill.recipes.quantize import Method
from gristmill.runtime.errors import InputError
from gristmill.runtime.model_plan import LinearPlan
from gristmill.runtime.scheme import ActivationScheme, QuantScheme
from tests.pipeline.small_block import block_output, random_weights, small_layer

LAYER = small_layer()
W8A8 = QuantScheme(8, -1, True, activation=ActivationScheme("int", 8, "token", dynamic=True))
W4A8 = replace(W8A8, bits=4, group_size=16)
W8A8_STATIC = replace(W8A8, activation=ActivationScheme("int", 8, "tensor", dynamic=False))
FP8 = QuantScheme(8, -1, True, "float", activation=ActivationScheme("float", 8, "token", dynamic=True))
FP8_STATIC = replace(FP8, activation=ActivationScheme("float", 8, "tensor", dynamic=False))
FP8_BLOCK = QuantScheme(8, 32, True, "float", activation=ActivationScheme("float", 8, "group", dynamic=True))
NVFP4 = QuantScheme(4, 16, True, "float", "float8_e4m3fn")
W4 = QuantScheme(4, 16, symmetric=False)

Weights = Mapping[str, torch.Tensor]
StatisticsOf = Callable[[torch.Tensor], InputStatistics]
possible = pytest.mark.parametrize(
    ("method", "scheme"),
    [
        ("rtn", W4A8),
        ("gptq", W4A8),
        ("smoothquant", W4A8),
        ("rtn", W8A8),
        ("gptq", W8A8),
        ("smoothquant", W8A8),
        ("rtn", W8A8_STATIC),
        ("smoothquant", W8A8_STATIC),
        ("rtn", FP8),
        ("rtn", FP8_STATIC),
        ("rtn", FP8_BLOCK),
    ],
)


def settings_for(method: Method, scheme: QuantScheme) -> QuantizeSettings:
    return QuantizeSettings(method, {linear.name: scheme for linear in LAYER.linears})


def output(
    weights: Weights,
    schemes: Mapping[str, QuantScheme] | None = None,
    observe: Callable[[tuple[LinearPlan, ...], torch.Tensor], None] | None = None,
) -> torch.Tensor:
    hidden = torch.randn(4, 24, 64, generator=torch.Generator().manual_seed(7))
    hidden[..., ::16] *= 30
    return block_output(LAYER, weights, hidden, observe, schemes or {})


class Observations:
    """Statistics by running the block."""

    def __init__(self, measure: StatisticsOf) -> None:
        self._measure = measure

    def overview(self, weights: Weights) -> Mapping[tuple[str, ...], InputStatistics]:
        found: dict[tuple[str, ...], InputStatistics] = {}

        def keep(group: tuple[LinearPlan, ...], inputs: torch.Tensor) -> None:
            rows = inputs.reshape(-1, inputs.shape[-1])
            found[tuple(linear.name for linear in group)] = replace(self._measure(rows), rows=rows)

        output(weights, observe=keep)
        return found

    def group(self, index: int, weights: Weights) -> GroupStatistics:
        names = tuple(linear.name for linear in LAYER.input_groups[index])
        return GroupStatistics(self.overview(weights)[names])

    def pairs(self) -> tuple[BlockPair, ...]:
        return ()


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    return random_weights(LAYER)


def lost(weights: Weights, method: Method, scheme: QuantScheme, known: Observations) -> float:
    """The part of the block's output that weights and inputs together lose."""
    result = quantize_block(LAYER, weights, known, settings_for(method, scheme))
    schemes = {name: tensor.scheme for name, tensor in result.quantized.items()}
    wanted = output(weights)
    return float((output(served_weights(weights, result), schemes) - wanted).norm() / wanted.norm())


@possible
def test_every_linear_has_its_scheme_and_a_small_loss(
    weights: dict[str, torch.Tensor], statistics_of: StatisticsOf, method: Method, scheme: QuantScheme
) -> None:
    known = Observations(statistics_of)
    result = quantize_block(LAYER, weights, known, settings_for(method, scheme))
    assert {name: tensor.scheme for name, tensor in result.quantized.items()} == {
        linear.name: scheme for linear in LAYER.linears
    }
    assert all((tensor.input_scale is not None) == scheme.is_static for tensor in result.quantized.values())
    assert lost(weights, method, scheme, known) < (0.05 if scheme.bits == 8 else 0.2)


def test_linears_that_read_one_tensor_have_one_input_scale(
    weights: dict[str, torch.Tensor], statistics_of: StatisticsOf
) -> None:
    result = quantize_block(
        LAYER, weights, Observations(statistics_of), settings_for("smoothquant", W8A8_STATIC)
    )
    for group in LAYER.input_groups:
        assert len({result.quantized[linear.name].input_scale for linear in group}) == 1


@pytest.mark.parametrize("scheme", [W8A8, W8A8_STATIC], ids=["dynamic", "static"])
def test_smoothing_loses_less_than_rounding_alone(
    weights: dict[str, torch.Tensor], statistics_of: StatisticsOf, scheme: QuantScheme
) -> None:
    known = Observations(statistics_of)
    assert lost(weights, "smoothquant", scheme, known) < 0.7 * lost(weights, "rtn", scheme, known)


def test_smoothing_leaves_the_function_as_it_is(
    weights: dict[str, torch.Tensor], statistics_of: StatisticsOf
) -> None:
    result = quantize_block(LAYER, weights, Observations(statistics_of), settings_for("smoothquant", W8A8))
    norms = {f"{norm.name}.weight" for norm in (LAYER.input_norm, LAYER.mlp_norm)}
    assert set(result.dense) == norms
    for name, tensor in result.dense.items():
        assert torch.equal(torch.frexp(weights[name] / tensor).mantissa, torch.full((64,), 0.5))


def test_blocks_do_not_span_two_linears(
    weights: dict[str, torch.Tensor], statistics_of: StatisticsOf
) -> None:
    """k has 32 rows here, q 64: scales of one must not depend on the other."""
    known = Observations(statistics_of)
    small = QuantScheme(8, 64, True, "float")
    schemes = {LAYER.attention.q.name: small, LAYER.attention.k.name: small}
    first = quantize_block(LAYER, weights, known, QuantizeSettings("rtn", schemes))
    weights[LAYER.attention.q.weight] *= 100
    second = quantize_block(LAYER, weights, known, QuantizeSettings("rtn", schemes))
    name = LAYER.attention.k.name
    np.testing.assert_array_equal(first.quantized[name].scales, second.quantized[name].scales)


def test_linears_that_kernels_fuse_share_their_global_scale(weights: dict[str, torch.Tensor]) -> None:
    weights[LAYER.attention.q.weight] *= 100
    result = quantize_block(LAYER, weights, None, settings_for("rtn", NVFP4))
    for group in LAYER.input_groups:
        assert len({result.quantized[linear.name].global_scale for linear in group}) == 1
    scales = {tensor.global_scale for tensor in result.quantized.values()}
    assert len(scales) > 1


@pytest.mark.parametrize(
    ("method", "scheme", "message"),
    [
        ("gptq", NVFP4, "method gptq; found float weights .NVFP4A16.; expected rtn"),
        ("gptq", FP8, "method gptq; found float weights .FP8_DYNAMIC_CHANNEL.; expected rtn"),
        ("smoothquant", FP8, "method smoothquant; found float weights"),
        ("awq", W4A8, "method awq; found quantized inputs .W4A8_G16."),
        ("awq", W8A8, "method awq; found quantized inputs .W8A8_CHANNEL."),
        ("signround", W8A8, "method signround; found quantized inputs"),
        ("smoothquant", W4, "method smoothquant; found weights only .W4A16_ASYM_G16."),
    ],
)
def test_methods_that_can_not_make_a_scheme_are_refused(
    method: Method, scheme: QuantScheme, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        settings_for(method, scheme)


def test_static_activations_need_statistics(weights: dict[str, torch.Tensor]) -> None:
    with pytest.raises(InputError, match="static activations need calibration"):
        quantize_block(LAYER, weights, None, settings_for("rtn", W8A8_STATIC))


@pytest.mark.parametrize("percentile", [0.0, 100.5])
def test_a_percentile_is_within_its_range(percentile: float) -> None:
    with pytest.raises(InputError, match="input percentile"):
        replace(settings_for("rtn", W8A8_STATIC), input_percentile=percentile)
