"""Which layers have experts, which linears those are, and what of a configuration is refused."""

from __future__ import annotations

from typing import Any

import pytest

from gristmill.runtime.architectures import plan_model
from gristmill.runtime.errors import GristmillError, ModelError
from gristmill.runtime.model_plan import LayerPlan, MoePlan

_SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "num_experts_per_tok": 2,
}
_QWEN: dict[str, Any] = {**_SIZES, "num_experts": 3, "moe_intermediate_size": 32}


def mixtral(**changes: Any) -> dict[str, Any]:
    return {**_SIZES, "model_type": "mixtral", "num_local_experts": 4, **changes}


def qwen2_moe(**changes: Any) -> dict[str, Any]:
    return {**_QWEN, "model_type": "qwen2_moe", "shared_expert_intermediate_size": 48, **changes}


def qwen3_moe(**changes: Any) -> dict[str, Any]:
    return {**_QWEN, "model_type": "qwen3_moe", **changes}


def first_layer(config: dict[str, Any]) -> tuple[LayerPlan, MoePlan]:
    layer = plan_model(config).layers[0]
    assert isinstance(layer.mlp, MoePlan)
    return layer, layer.mlp


@pytest.mark.parametrize(
    ("changes", "sparse"),
    [
        ({}, [True, True, True, True]),
        ({"mlp_only_layers": [0, 3]}, [False, True, True, False]),
        ({"decoder_sparse_step": 2}, [False, True, False, True]),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, [False, False, False, True]),
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [qwen2_moe, qwen3_moe])
def test_the_sparse_layers_are_those_that_the_configuration_says(
    make: Any, changes: dict[str, Any], sparse: list[bool]
) -> None:
    layers = plan_model(make(**changes)).layers
    assert [isinstance(layer.mlp, MoePlan) for layer in layers] == sparse


def test_mixtrals_experts_have_the_names_of_their_checkpoints() -> None:
    _, mlp = first_layer(mixtral())
    name = "model.layers.0.block_sparse_moe"
    assert mlp.router.name == f"{name}.gate"
    assert [linear.name for linear in mlp.experts[3].linears] == [
        f"{name}.experts.3.{weight}" for weight in ("w1", "w3", "w2")
    ]


@pytest.mark.parametrize("config", [mixtral(), qwen2_moe(), qwen3_moe()], ids=lambda c: str(c["model_type"]))
def test_every_expert_is_quantizable_and_no_router_is(config: dict[str, Any]) -> None:
    layer, mlp = first_layer(config)
    names = [linear.name for linear in layer.linears]
    assert len(names) == 4 + 3 * len(mlp.mlps)
    assert not {router.name for router in mlp.routers} & set(names)
    assert [linear.name for group in layer.input_groups for linear in group] == names


def test_a_shared_expert_has_its_own_width_and_a_gate_of_one_row() -> None:
    _, mlp = first_layer(qwen2_moe())
    assert mlp.shared is not None
    assert mlp.shared_gate is not None
    assert (mlp.shared.width, mlp.experts[0].width, mlp.shared_gate.out_features) == (48, 32, 1)
    assert mlp.width == 48 + 2 * 32


def test_a_scale_behind_the_norm_reaches_every_expert_and_the_routers() -> None:
    layer, mlp = first_layer(qwen2_moe())
    _, _, norm, *downs = layer.scaling_groups
    assert norm.source == layer.mlp_norm.name
    assert norm.linears == tuple(part for each in mlp.mlps for part in (each.gate, each.up))
    assert norm.routers == mlp.routers
    assert [(group.source, group.linears) for group in downs] == [
        (each.up.name, (each.down,)) for each in mlp.mlps
    ]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (mixtral(num_experts_per_tok=5), "num_experts_per_tok; found 5; expected at most num_local_experts"),
        (mixtral(num_local_experts=0), "num_local_experts; found 0"),
        (qwen3_moe(num_experts=None), "num_local_experts is missing"),
        (qwen2_moe(mlp_only_layers=[4]), "mlp_only_layers; found [4]; expected layers from 0 to 3"),
        (qwen2_moe(mlp_only_layers="all"), "mlp_only_layers; found 'all'"),
        (qwen2_moe(decoder_sparse_step=0), "decoder_sparse_step; found 0"),
        (qwen3_moe(moe_intermediate_size=None), "moe_intermediate_size is missing"),
    ],
)
def test_experts_that_do_not_fit_are_refused_by_name(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError) as refusal:
        plan_model(config)
    assert words in str(refusal.value)


@pytest.mark.parametrize("make", [mixtral, qwen2_moe, qwen3_moe])
def test_an_attribute_that_is_not_understood_is_refused_by_name(make: Any) -> None:
    with pytest.raises(GristmillError, match="attribute expert_bias of model type"):
        plan_model(make(expert_bias=True))
