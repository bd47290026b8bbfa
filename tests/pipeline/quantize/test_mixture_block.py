"""A block with experts is quantized by every method, and its router goes on deciding as it did."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from gristmill.calibration.batches import make_batches
from gristmill.calibration.step import BlockStep
from gristmill.calibration.streams import Streams
from gristmill.pipeline.quantize.block import BlockResult, QuantizeSettings, quantize_block, served_weights
from gristmill.pipeline.quantize.signround import SignRoundSettings
from gristmill.recipes.quantize import Method
from gristmill.runtime.executors.reference.mlp import route
from gristmill.runtime.model_plan import MoePlan
from gristmill.runtime.scheme import ActivationScheme, QuantScheme
from tests.pipeline.small_block import block_output, random_weights, small_layer

LAYER = small_layer("qwen2_moe")
assert isinstance(LAYER.mlp, MoePlan)
PLAN: MoePlan = LAYER.mlp
W4 = QuantScheme(4, 16, symmetric=False)
W8A8 = QuantScheme(
    8, -1, symmetric=True, activation=ActivationScheme("int", 8, "token", dynamic=True, symmetric=True)
)
METHODS: Mapping[Method, QuantScheme] = {
    "rtn": W4,
    "gptq": W4,
    "awq": W4,
    "signround": W4,
    "smoothquant": W8A8,
}
every_method = pytest.mark.parametrize("method", METHODS)
Weights = Mapping[str, torch.Tensor]


def states(seed: int) -> torch.Tensor:
    hidden = torch.randn(6, 40, 64, generator=torch.Generator().manual_seed(seed))
    hidden[..., ::16] *= 10
    hidden[..., 1] = 20
    return hidden


def quantized(method: Method, weights: Weights, min_tokens: int = 16) -> BlockResult:
    scheme = METHODS[method]
    settings = QuantizeSettings(
        method,
        {linear.name: scheme for linear in LAYER.linears},
        signround=SignRoundSettings(iterations=8),
        correct_drift=method in ("gptq", "signround"),
        min_expert_tokens=min_tokens,
    )
    (batch,) = make_batches([[1] * 40] * 6, 50, 4096, 1)
    original: list[torch.Tensor | None] = [states(0) if settings.follow_original else None]
    own = Streams((batch,), [states(0)], original, settings.schemes, settings.keep_rows, min_tokens)
    return quantize_block(LAYER, weights, BlockStep(own, LAYER, weights), settings)


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    """The last expert is never chosen: its logit falls with a channel that is high in every token."""
    made = random_weights(LAYER)
    made[PLAN.router.weight][3] = 0
    made[PLAN.router.weight][3, 1] = -10
    return made


@every_method
def test_every_expert_is_quantized_and_no_router_is(method: Method, weights: dict[str, torch.Tensor]) -> None:
    result = quantized(method, weights)
    assert set(result.quantized) == set(result.errors) == {linear.name for linear in LAYER.linears}
    assert all(error < 0.1 for error in result.errors.values())


@every_method
def test_the_quantized_block_stays_near_the_original_on_other_states(
    method: Method, weights: dict[str, torch.Tensor]
) -> None:
    served = served_weights(weights, quantized(method, weights))
    schemes = {linear.name: METHODS[method] for linear in LAYER.linears}
    wanted = block_output(LAYER, weights, states(1))
    found = block_output(LAYER, served, states(1), schemes=schemes)
    lost = (found - wanted).square().sum(-1) / wanted.square().sum(-1)
    assert float(lost.median()) < 0.01


@pytest.mark.parametrize("method", ["awq", "smoothquant"])
def test_folded_scales_change_no_bit_of_what_the_router_decides(
    method: Method, weights: dict[str, torch.Tensor]
) -> None:
    result = quantized(method, weights)
    assert PLAN.router.weight in result.dense
    norm = f"{LAYER.mlp_norm.name}.weight"
    x = torch.randn(50, 64, generator=torch.Generator().manual_seed(5))
    before = route(PLAN, weights, x * weights[norm])
    after = route(PLAN, {**weights, **result.dense}, x * result.dense[norm])
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])


@pytest.mark.parametrize("method", ["gptq", "signround", "rtn"])
def test_without_scales_to_fold_the_router_is_left_alone(
    method: Method, weights: dict[str, torch.Tensor]
) -> None:
    assert not quantized(method, weights).dense


def test_the_tokens_of_each_expert_are_told_and_those_that_saw_too_few_noted(
    weights: dict[str, torch.Tensor],
) -> None:
    result = quantized("gptq", weights, min_tokens=20)
    mixture = PLAN.router.name.removesuffix(".gate")
    assert list(result.routed) == [f"{mixture}.experts.{index}" for index in range(4)]
    assert sum(result.routed.values()) == 6 * 40 * PLAN.top_k
    few = [name for name, tokens in result.routed.items() if tokens < 20]
    assert f"{mixture}.experts.3" in few
    (note,) = result.notes
    assert note.startswith(f"layer 0: {len(few)} of 4 experts saw fewer than 20 calibration tokens")
