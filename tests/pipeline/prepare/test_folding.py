"""Scales folded into a block leave what it computes unchanged."""

from __future__ import annotations

import pytest
import torch

from gristmill.pipeline.prepare.fold import fold_scales, shared_scales
from gristmill.runtime.errors import InternalError
from gristmill.runtime.model_plan import LayerPlan, ScalingGroup
from tests.pipeline.small_block import block_output, random_weights, small_layer

PLACES = ["norm_to_qkv", "v_to_o", "norm_to_gate_up", "up_to_down"]
every_place = pytest.mark.parametrize("place", range(4), ids=PLACES)


def random_scales(group: ScalingGroup) -> torch.Tensor:
    """Scales from a tenth to ten, tied where a source channel is shared."""
    generator = torch.Generator().manual_seed(1)
    exponents = torch.rand(group.linears[0].in_features, generator=generator) * 2 - 1
    return shared_scales(group, 10**exponents)


def output(layer: LayerPlan, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    hidden = torch.randn(2, 12, 64, generator=torch.Generator().manual_seed(2))
    return block_output(layer, weights, hidden)


@every_place
@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_folded_block_computes_the_same(family: str, kv_heads: int, place: int) -> None:
    layer = small_layer(family, kv_heads)
    weights, group = random_weights(layer), layer.scaling_groups[place]
    folded = {**weights, **fold_scales(weights, group, random_scales(group))}
    torch.testing.assert_close(output(layer, folded), output(layer, weights), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_all_folds_together_leave_the_block_as_it_was(family: str) -> None:
    layer = small_layer(family)
    weights = random_weights(layer)
    folded = dict(weights)
    for group in layer.scaling_groups:
        folded.update(fold_scales(folded, group, random_scales(group)))
    assert all(not torch.equal(folded[linear.weight], weights[linear.weight]) for linear in layer.linears)
    torch.testing.assert_close(output(layer, folded), output(layer, weights), rtol=1e-4, atol=1e-4)


@every_place
def test_columns_are_multiplied_by_the_scales(place: int) -> None:
    layer = small_layer("llama")
    weights, group = random_weights(layer), layer.scaling_groups[place]
    scales = random_scales(group)
    folded = fold_scales(weights, group, scales)
    for linear in group.linears:
        torch.testing.assert_close(folded[linear.weight], weights[linear.weight] * scales)


@every_place
def test_only_the_source_and_its_readers_change(place: int) -> None:
    layer = small_layer("qwen2")
    weights, group = random_weights(layer), layer.scaling_groups[place]
    expected = {linear.weight for linear in group.linears} | {f"{group.source}.weight"}
    if place == 1:
        expected.add(f"{group.source}.bias")
    assert set(fold_scales(weights, group, random_scales(group))) == expected


@every_place
def test_the_tensors_given_stay_as_they_were(place: int) -> None:
    layer = small_layer("qwen2")
    weights, group = random_weights(layer), layer.scaling_groups[place]
    scales = random_scales(group)
    before = {name: tensor.clone() for name, tensor in weights.items()}
    fold_scales(weights, group, scales)
    assert all(torch.equal(weights[name], before[name]) for name in before)
    assert torch.equal(scales, random_scales(group))


@every_place
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_folded_tensors_keep_their_type(dtype: torch.dtype, place: int) -> None:
    layer = small_layer("qwen2")
    group = layer.scaling_groups[place]
    folded = fold_scales(random_weights(layer, dtype), group, random_scales(group))
    assert {tensor.dtype for tensor in folded.values()} == {dtype}


def test_shared_scales_are_the_geometric_mean_over_the_heads_that_read_one_source() -> None:
    group = small_layer("llama").scaling_groups[1]
    scales = torch.rand(64, generator=torch.Generator().manual_seed(3)) + 0.1
    shared = shared_scales(group, scales)
    for channel in range(64):
        source_head, offset = channel // 32, channel % 16
        first, second = (scales[source_head * 32 + repeat * 16 + offset].item() for repeat in range(2))
        assert shared[channel].item() == pytest.approx((first * second) ** 0.5)


def test_scales_stay_as_they_are_where_no_channel_is_shared() -> None:
    group = small_layer("llama").scaling_groups[3]
    scales = torch.rand(96) + 0.1
    assert torch.equal(shared_scales(group, scales), scales)


def test_scales_that_differ_between_heads_of_one_source_are_refused() -> None:
    layer = small_layer("llama")
    with pytest.raises(InternalError, match="differ between heads"):
        fold_scales(random_weights(layer), layer.scaling_groups[1], torch.linspace(1, 2, 64))


@every_place
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_scales_that_are_not_positive_and_finite_are_refused(value: float, place: int) -> None:
    layer = small_layer("llama")
    group = layer.scaling_groups[place]
    scales = torch.full((group.linears[0].in_features,), value)
    with pytest.raises(InternalError, match="not all positive and finite"):
        fold_scales(random_weights(layer), group, scales)
