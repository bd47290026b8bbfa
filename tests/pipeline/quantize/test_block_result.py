"""A block is quantized as its schemes say, and what it returns is what will be served."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch

from gristmill.calibration.batches import Batch
from gristmill.calibration.drift import Drift, GroupStatistics
from gristmill.calibration.pairs import BlockPair
from gristmill.calibration.statistics import InputStatistics
from gristmill.pipeline.quantize.block import (
    BlockResult,
    QuantizeSettings,
    quantize_block,
    served_weights,
)
from gristmill.pipeline.quantize.gptq import GptqSettings
from gristmill.pipeline.quantize.rtn import quantize_rtn
from gristmill.pipeline.quantize.signround import SignRoundSettings
from gristmill.recipes.quantize import Method
from gristmill.runtime.errors import InputError, ModelError
from gristmill.runtime.model_plan import LinearPlan
from gristmill.runtime.scheme import QuantScheme
from tests.pipeline.small_block import block_output, random_weights, small_layer
from tests.tiny_checkpoints import dense_mlp

LAYER = small_layer()
W4 = QuantScheme(4, 16, symmetric=False)
W8 = QuantScheme(8, 32, symmetric=True)

Weights = Mapping[str, torch.Tensor]
StatisticsOf = Callable[[torch.Tensor], InputStatistics]
every_method = pytest.mark.parametrize("method", ["rtn", "gptq", "awq", "signround"])
one_by_one = pytest.mark.parametrize("method", ["rtn", "gptq", "awq"])
calibrated = pytest.mark.parametrize("method", ["gptq", "awq", "signround"])


def name_of(short: str) -> str:
    return next(linear.name for linear in LAYER.linears if linear.name.endswith(f".{short}"))


def settings_for(method: Method, schemes: Mapping[str, QuantScheme | None] | None = None) -> QuantizeSettings:
    """Schemes by the last part of a linear's name; W4 for all without them."""
    named: dict[str, QuantScheme | None] = {linear.name: W4 for linear in LAYER.linears}
    if schemes is not None:
        named = {name_of(short): scheme for short, scheme in schemes.items()}
    return QuantizeSettings(method, named, signround=SignRoundSettings(iterations=8))


def block_input() -> torch.Tensor:
    hidden = torch.randn(4, 24, 64, generator=torch.Generator().manual_seed(7))
    hidden[..., ::16] *= 10
    return hidden


def output(weights: Weights, observe: Callable[..., None] | None = None) -> torch.Tensor:
    return block_output(LAYER, weights, block_input(), observe)


class Observations:
    """Statistics by running the block, for each group with the weights it is asked for with."""

    def __init__(self, measure: StatisticsOf) -> None:
        self._measure = measure
        self.seen: list[Weights] = []

    def overview(self, weights: Weights) -> Mapping[tuple[str, ...], InputStatistics]:
        found: dict[tuple[str, ...], InputStatistics] = {}

        def keep(group: tuple[LinearPlan, ...], inputs: torch.Tensor) -> None:
            found[tuple(linear.name for linear in group)] = self._measure(
                inputs.reshape(-1, inputs.shape[-1])
            )

        output(weights, keep)
        return found

    def group(self, index: int, weights: Weights) -> GroupStatistics:
        self.seen.append(dict(weights))
        names = tuple(linear.name for linear in LAYER.input_groups[index])
        return GroupStatistics(self.overview(weights)[names])

    def pairs(self) -> tuple[BlockPair, ...]:
        original = self.seen[0]
        dtype = next(iter(original.values())).dtype
        batch = Batch(torch.zeros(4, 24, dtype=torch.int64), None, sampled=True)
        return (BlockPair(batch, block_input().to(dtype), output(original).to(dtype)),)


class Altered(Observations):
    """The same, with the Hessian of o_proj's input replaced."""

    def __init__(self, measure: StatisticsOf, hessian: torch.Tensor) -> None:
        super().__init__(measure)
        self._hessian = hessian

    def group(self, index: int, weights: Weights) -> GroupStatistics:
        known = super().group(index, weights)
        return known if index != 1 else GroupStatistics(replace(known.inputs, hessian=self._hessian))


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    return random_weights(LAYER, torch.float32)


@pytest.fixture
def observations(statistics_of: StatisticsOf) -> Observations:
    return Observations(statistics_of)


@every_method
def test_every_scheduled_linear_is_quantized_and_its_error_told(
    weights: dict[str, torch.Tensor], observations: Observations, method: Method
) -> None:
    result = quantize_block(LAYER, weights, observations, settings_for(method))
    names = {linear.name for linear in LAYER.linears}
    assert set(result.quantized) == set(result.errors) == names
    assert all(0 < error < 0.05 for error in result.errors.values())


@every_method
def test_schemes_may_differ_within_a_block_and_within_a_group(
    weights: dict[str, torch.Tensor], observations: Observations, method: Method
) -> None:
    coarse = QuantScheme(3, -1, symmetric=False)
    schemes = {"q_proj": W4, "k_proj": W8, "v_proj": W4, "o_proj": coarse, "up_proj": W8, "down_proj": W4}
    result = quantize_block(LAYER, weights, observations, settings_for(method, schemes))
    assert {name: tensor.scheme for name, tensor in result.quantized.items()} == {
        name_of(short): scheme for short, scheme in schemes.items()
    }
    for name, tensor in result.quantized.items():
        assert tensor.shape == tuple(weights[f"{name}.weight"].shape)
    assert result.errors[name_of("k_proj")] < result.errors[name_of("q_proj")]


def test_rounding_linears_together_gives_what_each_gives_alone(weights: dict[str, torch.Tensor]) -> None:
    result = quantize_block(LAYER, weights, None, settings_for("rtn"))
    for linear in LAYER.linears:
        alone = quantize_rtn(weights[linear.weight], None, W4)
        np.testing.assert_array_equal(result.quantized[linear.name].codes, alone.codes)
        np.testing.assert_array_equal(result.quantized[linear.name].scales, alone.scales)


@pytest.mark.parametrize("method", ["rtn", "gptq"])
def test_skipped_linears_and_norms_do_not_change_without_folding(
    weights: dict[str, torch.Tensor], observations: Observations, method: Method
) -> None:
    schemes = {"q_proj": W4, "v_proj": None, "gate_proj": W8}
    result = quantize_block(LAYER, weights, observations, settings_for(method, schemes))
    assert set(result.quantized) == {name_of("q_proj"), name_of("gate_proj")}
    assert result.dense == {}


def test_awq_changes_a_skipped_linear_by_folding_only(
    weights: dict[str, torch.Tensor], observations: Observations
) -> None:
    schemes = {"q_proj": W4, "k_proj": W4, "o_proj": W4}
    result = quantize_block(LAYER, weights, observations, settings_for("awq", schemes))
    v, norm = f"{name_of('v_proj')}.weight", f"{LAYER.input_norm.name}.weight"
    assert set(result.dense) == {v, norm}
    ratio = (result.dense[v] / weights[v]).double()  # columns times the norm's scales, rows by those of o
    torch.testing.assert_close(ratio, torch.outer(ratio[:, 0], ratio[0]) / ratio[0, 0], rtol=1e-4, atol=0)
    columns = (weights[norm] / result.dense[norm]).double()
    torch.testing.assert_close(ratio[0] / ratio[0, 0], columns / columns[0], rtol=1e-4, atol=0)


def test_awq_leaves_groups_without_a_scheme_alone(
    weights: dict[str, torch.Tensor], observations: Observations
) -> None:
    schemes = {"gate_proj": W4, "up_proj": W4}
    result = quantize_block(LAYER, weights, observations, settings_for("awq", schemes))
    assert set(result.dense) == {f"{LAYER.mlp_norm.name}.weight"}


@every_method
def test_a_block_without_schemes_comes_back_unchanged(
    weights: dict[str, torch.Tensor], observations: Observations, method: Method
) -> None:
    result = quantize_block(LAYER, weights, observations, settings_for(method, {}))
    assert (result.quantized, result.dense, result.errors, result.notes) == ({}, {}, {}, ())


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_weights_given_are_not_altered(
    observations: Observations, method: Method, dtype: torch.dtype
) -> None:
    weights = random_weights(LAYER, dtype)
    before = {name: tensor.clone() for name, tensor in weights.items()}
    quantize_block(LAYER, weights, observations, settings_for(method))
    assert set(weights) == set(before)
    assert all(torch.equal(weights[name], before[name]) for name in before)


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_served_weights_are_the_dense_tensors_and_what_the_codes_mean(
    observations: Observations, method: Method, dtype: torch.dtype
) -> None:
    weights = random_weights(LAYER, dtype)
    schemes = {"q_proj": W4, "o_proj": W8, "up_proj": W4, "down_proj": W4}
    result = quantize_block(LAYER, weights, observations, settings_for(method, schemes))
    served = served_weights(weights, result)
    assert set(served) == set(weights)
    for name, tensor in served.items():
        linear = name.removesuffix(".weight")
        if linear in result.quantized:
            expected = torch.from_numpy(result.quantized[linear].dequantize()).to(dtype)
        else:
            expected = result.dense.get(name, weights[name])
        assert tensor.dtype == dtype
        assert torch.equal(tensor, expected)


@every_method
def test_the_block_served_in_8_bits_computes_nearly_the_same(
    weights: dict[str, torch.Tensor], observations: Observations, method: Method
) -> None:
    settings = settings_for(method, {linear.name.rpartition(".")[2]: W8 for linear in LAYER.linears})
    result = quantize_block(LAYER, weights, observations, settings)
    assert lost_part(weights, result) < 0.01


def lost_part(weights: Weights, result: BlockResult) -> float:
    expected = output(weights)
    return float((output(served_weights(weights, result)) - expected).norm() / expected.norm())


@calibrated
def test_a_calibrated_block_is_nearer_to_the_original_than_rtn(
    weights: dict[str, torch.Tensor], observations: Observations, method: Method
) -> None:
    found = quantize_block(LAYER, weights, observations, settings_for(method))
    rtn = quantize_block(LAYER, weights, None, settings_for("rtn"))
    assert lost_part(weights, found) < lost_part(weights, rtn)


def test_gptq_rounds_what_awq_has_scaled_before(
    weights: dict[str, torch.Tensor], observations: Observations
) -> None:
    settings = replace(settings_for("gptq"), scale_first=True)
    found = quantize_block(LAYER, weights, observations, settings)
    assert f"{LAYER.input_norm.name}.weight" in found.dense
    alone = quantize_block(LAYER, weights, None, settings_for("hqq"))
    assert lost_part(weights, found) < lost_part(weights, alone)


@one_by_one
def test_each_group_is_observed_behind_the_earlier_ones_as_served(
    weights: dict[str, torch.Tensor], observations: Observations, method: Method
) -> None:
    result = quantize_block(LAYER, weights, observations, settings_for(method))
    served = served_weights(weights, result)
    assert len(observations.seen) == 4
    for index, seen in enumerate(observations.seen):
        for earlier in LAYER.input_groups[:index]:
            assert all(torch.equal(seen[linear.weight], served[linear.weight]) for linear in earlier)


def test_the_error_is_the_part_of_the_output_that_rounding_takes(
    weights: dict[str, torch.Tensor], statistics_of: StatisticsOf
) -> None:
    result = quantize_block(LAYER, weights, Observations(statistics_of), settings_for("rtn"))
    inputs: dict[str, torch.Tensor] = {}

    def keep(group: tuple[LinearPlan, ...], rows: torch.Tensor) -> None:
        inputs.update({linear.name: rows.reshape(-1, rows.shape[-1]).double() for linear in group})

    output(served_weights(weights, result), keep)
    for linear in LAYER.linears:
        weight = weights[linear.weight].double()
        errors = weight - torch.from_numpy(result.quantized[linear.name].dequantize())
        rows = inputs[linear.name]
        expected = float((rows @ errors.T).square().sum() / (rows @ weight.T).square().sum())
        assert result.errors[linear.name] == pytest.approx(expected, rel=1e-3)


def test_without_statistics_the_error_is_relative_to_the_weight(weights: dict[str, torch.Tensor]) -> None:
    result = quantize_block(LAYER, weights, None, settings_for("rtn"))
    weight = weights[dense_mlp(LAYER).down.weight]
    lost = torch.from_numpy(result.quantized[dense_mlp(LAYER).down.name].dequantize()) - weight
    expected = float(lost.square().sum() / weight.square().sum())
    assert result.errors[dense_mlp(LAYER).down.name] == pytest.approx(expected, rel=1e-5)


def test_raised_damping_is_noted_by_name(
    weights: dict[str, torch.Tensor], statistics_of: StatisticsOf
) -> None:
    settings = replace(settings_for("gptq"), gptq=GptqSettings(damping=1e-18))
    result = quantize_block(LAYER, weights, Altered(statistics_of, torch.ones(64, 64)), settings)
    raised = f"{name_of('o_proj')}: damping raised from 1e-18"
    assert any(note.startswith(raised) for note in result.notes)
    assert f"{name_of('o_proj')}: the Hessian was factorized in float64" in result.notes


def test_damping_that_suffices_is_not_noted(
    weights: dict[str, torch.Tensor], observations: Observations
) -> None:
    assert quantize_block(LAYER, weights, observations, settings_for("gptq")).notes == ()


@every_method
@pytest.mark.parametrize("short", ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_is_refused_by_name(
    weights: dict[str, torch.Tensor], observations: Observations, method: Method, short: str, value: float
) -> None:
    weights[f"{name_of(short)}.weight"][3, 5] = value
    with pytest.raises(ModelError, match=short):
        quantize_block(LAYER, weights, observations, settings_for(method))


@every_method
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [(3, 3), (2, 9)], ids=["diagonal", "beside_it"])
def test_a_hessian_that_is_not_finite_is_refused_by_name(
    weights: dict[str, torch.Tensor],
    statistics_of: StatisticsOf,
    method: Method,
    value: float,
    place: tuple[int, int],
) -> None:
    hessian = torch.eye(64)
    hessian[place] = hessian[place[::-1]] = value
    with pytest.raises(ModelError, match="o_proj"):
        quantize_block(LAYER, weights, Altered(statistics_of, hessian), settings_for(method))


@every_method
def test_a_group_size_that_does_not_divide_is_refused(
    weights: dict[str, torch.Tensor], observations: Observations, method: Method
) -> None:
    schemes = {"q_proj": W4, "down_proj": QuantScheme(4, 64, symmetric=True)}
    with pytest.raises(InputError, match="64 does not divide 96"):
        quantize_block(LAYER, weights, observations, settings_for(method, schemes))


@calibrated
def test_calibrated_methods_refuse_to_go_without_statistics(
    weights: dict[str, torch.Tensor], method: Method
) -> None:
    with pytest.raises(InputError, match=f"{method} needs calibration statistics"):
        quantize_block(LAYER, weights, None, settings_for(method))


class Drifted(Observations):
    """The same, for an original whose input of q, k and v was twice as large."""

    def group(self, index: int, weights: Weights) -> GroupStatistics:
        known = super().group(index, weights)
        if index != 0:
            return known
        return GroupStatistics(known.inputs, Drift(known.inputs.hessian, inputs=known.inputs.hessian))


@pytest.mark.parametrize(("corrected", "factor"), [(True, 2.0), (False, 1.0)])
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_drift_is_corrected_only_on_request(
    weights: dict[str, torch.Tensor],
    statistics_of: StatisticsOf,
    method: Method,
    corrected: bool,
    factor: float,
) -> None:
    schemes = {short: W8 for short in ("q_proj", "k_proj", "v_proj")}
    settings = replace(settings_for(method, schemes), correct_drift=corrected, correction_damping=1e-6)
    result = quantize_block(LAYER, weights, Drifted(statistics_of), settings)
    found = value_outputs(served_weights(weights, result))
    expected = factor * value_outputs(weights)
    assert float((found - expected).norm() / expected.norm()) < 0.05


def value_outputs(weights: Weights) -> torch.Tensor:
    """What v gives for the block's input, by way of what q, k and v read."""
    inputs: list[torch.Tensor] = []
    output(weights, lambda group, rows: inputs.append(rows))
    return inputs[0] @ weights[LAYER.attention.v.weight].T
