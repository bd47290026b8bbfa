"""A plan that was written as JSON is read back as itself, or refused with the field's name."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gristmill.runtime.architectures import ARCHITECTURES, plan_model
from gristmill.runtime.errors import InputError, UnsupportedError
from gristmill.runtime.executors.native.plan_check import check_plan
from gristmill.runtime.model_plan import ModelPlan

_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}


_CLASSES = {
    "smollm3": "SmolLM3ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
_EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_OWN: dict[str, dict[str, Any]] = {
    "qwen2_moe": {**_EXPERTS, "shared_expert_intermediate_size": 48, "mlp_only_layers": [1]},
    "qwen3_moe": _EXPERTS,
}
_MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe")


def tiny(model_type: str = "llama", **changes: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "architectures": [_CLASSES.get(model_type, f"{model_type.capitalize()}ForCausalLM")],
        **_OWN.get(model_type, {}),
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "dtype": "bfloat16",
        **changes,
    }


def tiny_plan(**changes: Any) -> ModelPlan:
    return plan_model(tiny(**changes))


def through_json(plan: ModelPlan) -> ModelPlan:
    return ModelPlan.from_dict(json.loads(json.dumps(plan.to_dict())))


@pytest.mark.parametrize(
    "changes",
    [
        *({"model_type": model_type} for model_type in ARCHITECTURES),
        {"tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
        {"hidden_act": "gelu_pytorch_tanh"},
        {"rope_scaling": _YARN},
        {"model_type": "mistral", "sliding_window": 5},
    ],
    ids=str,
)
def test_every_plan_comes_back_as_itself(changes: dict[str, Any]) -> None:
    plan = tiny_plan(**changes)
    assert through_json(plan) == plan
    assert ModelPlan.from_dict(plan.to_dict()) == plan


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_the_parts_of_every_plan_fit_together(model_type: str) -> None:
    check_plan(tiny_plan(model_type=model_type))


def test_the_plans_of_real_models_come_back_and_fit_together(data_dir: Path) -> None:
    plans: list[ModelPlan] = []
    for file in sorted((data_dir / "field" / "configs").glob("*.json")):
        config = json.loads(file.read_bytes())
        if isinstance(config, dict):  # not the index
            with suppress(UnsupportedError):
                plans.append(plan_model(config))
    assert plans
    for plan in plans:
        assert through_json(plan) == plan
        check_plan(plan)


def changed(path: str, value: Any) -> dict[str, Any]:
    """The plan of a tiny model as JSON with one field replaced, or removed if `value` is `...`."""
    data: dict[str, Any] = json.loads(json.dumps(tiny_plan(model_type="qwen3").to_dict()))
    inner: Any = data
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    for key in parents:
        inner = inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("vocab_size", ..., "model: missing vocab_size"),
        ("speed", 3, "model: unknown speed"),
        ("vocab_size", "100", "model.vocab_size; found '100'; expected an integer"),
        ("vocab_size", 100.0, "model.vocab_size; found 100.0; expected an integer"),
        ("vocab_size", True, "model.vocab_size; found True"),
        ("vocab_size", 2**63, "model.vocab_size"),
        ("layers", {}, "model.layers; found dict of 0; expected a list"),
        ("layers.1.mlp", None, "model.layers[1].mlp; found None; expected an object"),
        ("layers.0.mlp.activation", "relu", "model.layers[0].mlp.activation; found 'relu'"),
        ("layers.0.mlp.gate.bias", 1, "model.layers[0].mlp.gate.bias; found 1; expected true or false"),
        ("layers.0.attention.scale", float("nan"), "model.layers[0].attention.scale; found nan"),
        ("layers.0.attention.rope.inv_freq.3", "x", "rope.inv_freq[3]; found 'x'; expected a number"),
        ("layers.0.attention.q_norm", 4, "q_norm; found 4; expected an object"),
        ("head", [], "model.head"),
    ],
)
def test_a_plan_of_another_shape_is_refused(path: str, value: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        ModelPlan.from_dict(changed(path, value))
    assert words in str(caught.value)


@pytest.mark.parametrize("value", [None, [], 3, "plan"])
def test_what_is_no_object_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match="expected an object"):
        ModelPlan.from_dict(value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("vocab_size", 0),
        ("hidden_size", -64),
        ("hidden_size", 2**40),
        ("max_positions", 0),
        ("dtype", "int8"),
        ("layers", []),
        ("layers.1.index", 0),
        ("layers.0.attention.num_heads", 0),
        ("layers.0.attention.num_kv_heads", 3),
        ("layers.0.attention.head_dim", 15),
        ("layers.0.attention.sliding_window", -1),
        ("layers.0.attention.rope.rotary_dim", 2**20),
        ("layers.0.attention.rope.inv_freq", [1.0]),
        ("layers.0.attention.q.in_features", 32),
        ("layers.0.attention.v.out_features", 1),
        ("layers.0.attention.o.in_features", 63),
        ("layers.0.attention.q_norm.size", 64),
        ("layers.0.mlp.gate.out_features", 0),
        ("layers.0.mlp.up.out_features", 64),
        ("layers.0.mlp.down.in_features", 64),
        ("layers.1.input_norm.size", 3),
        ("final_norm.size", 63),
        ("head.out_features", 99),
    ],
)
def test_a_plan_whose_sizes_do_not_fit_together_is_refused(path: str, value: Any) -> None:
    plan = ModelPlan.from_dict(changed(path, value))
    with pytest.raises(InputError, match="model"):
        check_plan(plan)
