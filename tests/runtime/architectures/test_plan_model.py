"""What a `config.json` may say, in the dialects of transformers 4 and 5, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from gristmill.runtime.architectures import ARCHITECTURES, plan_model
from gristmill.runtime.errors import InputError, ModelError, UnsupportedError
from gristmill.runtime.model_plan import ModelPlan

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}


def llama(**changes: Any) -> dict[str, Any]:
    return {**LLAMA, **changes}


def family(model_type: str, model_class: str, **changes: Any) -> dict[str, Any]:
    return llama(model_type=model_type, architectures=[model_class], **changes)


def qwen2(**changes: Any) -> dict[str, Any]:
    return family("qwen2", "Qwen2ForCausalLM", **changes)


def without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in LLAMA.items() if key not in keys}


@pytest.mark.parametrize("use_diff", [True, False])
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_what_transformers_writes_is_understood(model_type: str, use_diff: bool) -> None:
    from transformers import AutoConfig

    config = AutoConfig.for_model(model_type)
    plan = plan_model(json.loads(config.to_json_string(use_diff=use_diff)))
    assert (plan.architecture, len(plan.layers)) == (model_type, config.num_hidden_layers)


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_the_plan_holds_the_tensors_of_the_transformers_model(model_type: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.core_model_loading import revert_weight_conversion

    sizes = {key: value for key, value in LLAMA.items() if key.startswith(("num", "hid", "int", "voc"))}
    config = AutoConfig.for_model(model_type, **sizes, pad_token_id=0)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    plan = plan_model(json.loads(config.to_json_string()))
    names = set(revert_weight_conversion(model, dict(model.named_parameters())))
    assert set(plan.tensor_shapes()) == names
    assert plan.num_parameters() == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        (llama(), "bfloat16"),
        (llama(torch_dtype=None, dtype="float16"), "float16"),
        (llama(dtype="bfloat16"), "bfloat16"),
        (without("torch_dtype"), "float32"),
    ],
    ids=["transformers 4", "transformers 5", "both alike", "neither"],
)
def test_the_checkpoint_type_is_read_under_both_names(config: dict[str, Any], dtype: str) -> None:
    assert plan_model(config).dtype == dtype


def attention_of(plan: ModelPlan) -> Any:
    return plan.layers[0].attention


@pytest.mark.parametrize(
    ("config", "read", "expected"),
    [
        (without("num_key_value_heads"), lambda p: attention_of(p).num_kv_heads, 4),
        (llama(), lambda p: attention_of(p).head_dim, 16),
        (llama(head_dim=20), lambda p: attention_of(p).q.out_features, 80),
        (llama(head_dim=20, hidden_size=63), lambda p: attention_of(p).o.in_features, 80),
        (llama(), lambda p: attention_of(p).scale, 0.25),
        (llama(), lambda p: p.head.out_features, 100),
        (llama(tie_word_embeddings=True), lambda p: p.head, None),
        (llama(), lambda p: attention_of(p).o.bias, False),
        (llama(attention_bias=True), lambda p: attention_of(p).o.bias, True),
        (llama(mlp_bias=True), lambda p: p.layers[0].mlp.gate.bias, True),
        (llama(hidden_act="swish"), lambda p: p.layers[0].mlp.activation, "silu"),
        (llama(hidden_act="gelu_pytorch_tanh"), lambda p: p.layers[0].mlp.activation, "gelu_tanh"),
        (qwen2(), lambda p: (attention_of(p).q.bias, attention_of(p).o.bias), (True, False)),
        (family("qwen3", "Qwen3ForCausalLM"), lambda p: attention_of(p).head_dim, 128),
        (family("qwen3", "Qwen3ForCausalLM"), lambda p: attention_of(p).q_norm.size, 128),
        (family("mistral", "MistralForCausalLM"), lambda p: attention_of(p).sliding_window, 4096),
        (family("smollm3", "SmolLM3ForCausalLM"), lambda p: p.head, None),
        (family("smollm3", "SmolLM3ForCausalLM", tie_word_embeddings=False), lambda p: p.head.bias, False),
    ],
    ids=lambda value: "" if callable(value) or isinstance(value, dict) else str(value),
)
def test_an_attribute_means_what_it_means_in_transformers(
    config: dict[str, Any], read: Callable[[ModelPlan], object], expected: object
) -> None:
    assert read(plan_model(config)) == expected


def windows(config: dict[str, Any]) -> list[int | None]:
    return [layer.attention.sliding_window for layer in plan_model(config).layers]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (qwen2(sliding_window=8, max_window_layers=1), [None, None]),
        (qwen2(use_sliding_window=True, sliding_window=8, max_window_layers=1), [None, 8]),
        (qwen2(use_sliding_window=True, sliding_window=8, max_window_layers=0), [8, 8]),
        (
            qwen2(
                use_sliding_window=True,
                sliding_window=8,
                layer_types=["sliding_attention", "full_attention"],
            ),
            [8, None],
        ),
        (family("mistral", "MistralForCausalLM", sliding_window=None), [None, None]),
        (family("mistral", "MistralForCausalLM", sliding_window=6), [6, 6]),
    ],
    ids=["switched off", "later layers", "all layers", "layer types", "mistral null", "mistral"],
)
def test_windows_lie_on_the_layers_that_have_them(config: dict[str, Any], expected: list[int | None]) -> None:
    assert windows(config) == expected


@pytest.mark.parametrize(
    "extra",
    [
        {"quantization_config": {"quant_method": "awq"}},
        {"_name_or_path": "somewhere", "transformers_version": "4.40.0", "use_cache": True},
        {"pretraining_tp": 2, "attention_dropout": 0.1, "eos_token_id": [1, 2]},
        {"is_llama_config": True, "rope_interleaved": False},
        {"an_unknown_switch": None},
        {"sliding_window": None, "use_sliding_window": False},
    ],
    ids=lambda extra: next(iter(extra)),
)
def test_attributes_without_effect_change_nothing(extra: dict[str, Any]) -> None:
    assert plan_model(llama(**extra)) == plan_model(LLAMA)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            llama(model_type="gpt2"),
            "model_type; found 'gpt2'; expected llama, mistral, mixtral, qwen2,",
        ),
        (llama(architectures=["LlamaForSequenceClassification"]), "architectures; found"),
        (llama(architectures="LlamaForCausalLM"), "architectures; found"),
        (llama(auto_map={"AutoModelForCausalLM": "own.Model"}), "auto_map"),
        (llama(hidden_act="relu2"), "hidden_act; found 'relu2'; expected one of silu"),
        (llama(embedding_multiplier=12.0), "embedding_multiplier of model type llama is not understood"),
        (llama(vision_config={}), "vision_config"),
        (llama(sliding_window=128), "sliding_window"),
        (llama(rope_interleaved=True), "rope_interleaved; found True; expected False"),
        (llama(partial_rotary_factor=0.5), "partial_rotary_factor; found 0.5; expected 1.0"),
        (llama(is_causal=False), "is_causal; found False; expected True"),
        (qwen2(dual_chunk_attention_config={"chunk_size": 4}), "dual_chunk_attention_config"),
        (qwen2(attention_bias=True), "attention_bias; found True"),
        (llama(torch_dtype="float8_e4m3fn"), "torch_dtype; found 'float8_e4m3fn'"),
        (family("mistral", "MistralForCausalLM", layer_types=["full_attention"] * 2), "layer_types"),
        (qwen2(layer_types=["full_attention", "linear_attention"]), "'linear_attention'"),
    ],
)
def test_what_a_plan_can_not_express_is_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError) as refusal:
        plan_model(config)
    assert message in str(refusal.value)


REQUIRED = [key for key in LLAMA if key not in ("architectures", "num_key_value_heads", "torch_dtype")]


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_value_is_named(key: str) -> None:
    with pytest.raises(ModelError, match=key):
        plan_model(without(key))


@pytest.mark.parametrize("wrong", ["64", 0, -64, 64.0, True, float("nan"), [64], {}], ids=repr)
@pytest.mark.parametrize(
    "key",
    [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
    ],
)
def test_a_size_that_is_not_a_positive_whole_number_is_named(key: str, wrong: object) -> None:
    with pytest.raises(ModelError, match=f"config.json: {key}; found"):
        plan_model(llama(**{key: wrong}))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (llama(hidden_size=66), "num_attention_heads; found 4; expected a divisor of hidden_size 66"),
        (llama(num_key_value_heads=3), "num_key_value_heads; found 3; expected a divisor of num_attention"),
        (llama(num_key_value_heads=8), "num_key_value_heads; found 8"),
        (llama(head_dim=15), "head_dim; found 15; expected an even number"),
        (llama(num_hidden_layers=10**9), "num_hidden_layers"),
        (llama(rms_norm_eps=0), "rms_norm_eps"),
        (llama(rms_norm_eps="1e-5"), "rms_norm_eps; found '1e-5'"),
        (llama(rms_norm_eps=float("inf")), "rms_norm_eps; found inf"),
        (llama(tie_word_embeddings="yes"), "tie_word_embeddings; found 'yes'; expected true or false"),
        (llama(attention_bias=1), "attention_bias; found 1"),
        (llama(hidden_act=3), "hidden_act; found 3"),
        (llama(dtype="float32"), "dtype and torch_dtype contradict each other"),
        (llama(model_type=7), "model_type; found 7"),
        (without("model_type"), "model_type"),
        (qwen2(use_sliding_window=True, sliding_window="8"), "sliding_window; found '8'"),
        (qwen2(max_window_layers=-1), "max_window_layers; found -1"),
        (qwen2(layer_types=["full_attention"]), "layer_types"),
        (
            qwen2(layer_types=["sliding_attention"] * 2, sliding_window=8),
            "sliding_window is not set and used",
        ),
        (family("smollm3", "SmolLM3ForCausalLM", no_rope_layers=[1]), "no_rope_layers; found [1]"),
        (family("smollm3", "SmolLM3ForCausalLM", no_rope_layers=[1, 2]), "no_rope_layers"),
        (family("smollm3", "SmolLM3ForCausalLM", no_rope_layers=[1, []]), "no_rope_layers"),
    ],
)
def test_a_wrong_value_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError) as refusal:
        plan_model(config)
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    "key", [*LLAMA, "rope_scaling", "rope_parameters", "rope_theta", "quantization_config"]
)
@pytest.mark.parametrize("value", ["text", -1, 0, 1.5, True, [], [1], {"a": 1}, None], ids=repr)
def test_no_value_escapes_as_another_kind_of_error(key: str, value: object) -> None:
    with suppress(InputError):
        plan_model(llama(**{key: value}))
