"""Configurations made from metadata: what they say, what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.runtime.architectures import plan_model
from gristmill.runtime.errors import ModelError, UnsupportedError
from gristmill.runtime.sources.gguf_file import GgufFile


def _open(recipe: Any, tmp_path: Path) -> GgufFile:
    return GgufFile([recipe.write(tmp_path / "model.gguf")])


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_plan_of_the_configuration_reads_exactly_the_tensors(
    gguf_recipe: Any, tmp_path: Path, arch: str, tied: bool
) -> None:
    source = _open(gguf_recipe(arch, tied=tied), tmp_path)
    plan = plan_model(source.config)
    assert sorted(plan.tensor_shapes()) == sorted(source.tensor_shapes())
    assert (plan.head is None) is tied
    assert all(
        source.load(linear.weight).shape == (linear.out_features, linear.in_features)
        for linear in plan.linears
    )


def test_numbers_are_the_decimals_the_converter_was_given(gguf_recipe: Any, tmp_path: Path) -> None:
    metadata = {"llama.attention.layer_norm_rms_epsilon": 1e-6, "llama.rope.freq_base": 500000.0}
    config = _open(gguf_recipe(metadata=metadata), tmp_path).config
    assert (config["rms_norm_eps"], config["rope_theta"]) == (1e-06, 500000.0)


def test_head_size_and_context_come_from_the_metadata(gguf_recipe: Any, tmp_path: Path) -> None:
    recipe = gguf_recipe(metadata={"llama.attention.key_length": 32, "llama.attention.value_length": 32})
    for name, tensor in recipe.tensors.items():
        if ".attn_q." in name or ".attn_k." in name or ".attn_v." in name:
            recipe.tensors[name] = tensor[: len(tensor) // 2]
        if ".attn_output." in name:
            recipe.tensors[name] = np.ascontiguousarray(tensor[:, :128])
    config = _open(recipe, tmp_path).config
    assert (config["head_dim"], config["num_attention_heads"], config["max_position_embeddings"]) == (
        32,
        4,
        128,
    )


def test_linear_and_yarn_scaling_are_kept(gguf_recipe: Any, tmp_path: Path) -> None:
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    yarn = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 32,
    }
    assert _open(gguf_recipe(metadata=linear), tmp_path).config["rope_scaling"] == {
        "rope_type": "linear",
        "factor": 4.0,
    }
    assert _open(gguf_recipe(metadata=yarn), tmp_path).config["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    }


def _llama3_factors(theta: float, factor: float) -> np.ndarray[Any, Any]:
    """llama.cpp's converter, step by step."""
    factors = []
    for index in range(0, 64, 2):
        wavelength = 2 * np.pi / (1.0 / theta ** (index / 64))
        if wavelength < 8192 / 4:
            factors.append(1.0)
        elif wavelength > 8192 / 1:
            factors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_recovered_from_its_divisors(
    gguf_recipe: Any, tmp_path: Path, factor: float
) -> None:
    recipe = gguf_recipe(metadata={"llama.rope.freq_base": 500000.0})
    recipe.tensors["rope_freqs.weight"] = _llama3_factors(500000.0, factor)
    source = _open(recipe, tmp_path)
    assert source.config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    rope = plan_model(source.config).layers[0].attention.rope
    assert rope is not None
    plain = 500000.0 ** -(np.arange(0, 64, 2) / 64)
    assert np.allclose(rope.inv_freq, plain / recipe.tensors["rope_freqs.weight"], rtol=1e-5)
    assert "rope_freqs.weight" not in source.tensor_shapes()


def test_other_divisors_are_refused(gguf_recipe: Any, tmp_path: Path) -> None:
    recipe = gguf_recipe(metadata={"llama.rope.freq_base": 500000.0})
    recipe.tensors["rope_freqs.weight"] = np.linspace(1, 8, 32, dtype=np.float32)
    with pytest.raises(UnsupportedError, match=r"rope_freqs\.weight of .*found 32 divisors up to 8"):
        _open(recipe, tmp_path)


def test_every_token_that_ends_a_reply_is_in_the_generation_defaults(
    gguf_recipe: Any, tmp_path: Path
) -> None:
    metadata = {
        "tokenizer.ggml.eot_token_id": 2,
        "tokenizer.ggml.eom_token_id": 0,
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 20,
    }
    files = _open(gguf_recipe(metadata=metadata), tmp_path).side_files()
    assert json.loads(files["generation_config.json"]) == {
        "bos_token_id": 1,
        "eos_token_id": [0, 2],
        "pad_token_id": 0,
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
    }


_REFUSED = {
    "general.architecture": ("gpt_oss", "architecture of .*; found gpt_oss; expected llama, qwen2, qwen3"),
    "general.type": ("adapter", "not a whole model; found general.type adapter"),
    "llama.attention.head_count": ([4, 4], "attention.head_count of .*; found one value a layer"),
    "llama.attention.head_count_kv": ([2, 1], "attention.head_count_kv of .*; found one value a layer"),
    "llama.expert_count": (8, "llama.expert_count of .*; found 8; expected a model without it"),
    "llama.attention.sliding_window": (64, "llama.attention.sliding_window of .*; found 64"),
    "llama.rope.dimension_count": (32, "rope.dimension_count of .*; found 32; expected 64, the head size"),
    "llama.rope.scaling.type": ("longrope", "rope.scaling.type of .*; found longrope"),
    "llama.rope.scaling.attn_factor": (0.5, "rope.scaling.attn_factor of"),
}


@pytest.mark.parametrize("key", _REFUSED)
def test_what_a_plan_can_not_express_is_refused_by_key(gguf_recipe: Any, tmp_path: Path, key: str) -> None:
    value, message = _REFUSED[key]
    metadata = {key: value} | ({"llama.rope.scaling.factor": 2.0} if key.endswith("scaling.type") else {})
    recipe = gguf_recipe(metadata=metadata)
    if key == "general.architecture":
        recipe.arch = value
    with pytest.raises(UnsupportedError, match=message):
        _open(recipe, tmp_path)


_WRONG = {
    "general.architecture": (None, "has no general.architecture"),
    "llama.embedding_length": (None, "has no llama.embedding_length; convert the model again"),
    "llama.block_count": ("two", "llama.block_count of .*; found 'two'; expected int"),
    "llama.attention.layer_norm_rms_epsilon": (None, "has no llama.attention.layer_norm_rms_epsilon"),
    "llama.attention.head_count": (0, "head_count of .*; found 0"),
    "llama.feed_forward_length": (
        513,
        r"tensor blk.0.ffn_gate.weight .*found shape \[512, 256\]; expected \[513, 256\]",
    ),
    "tokenizer.ggml.eos_token_id": (999, "eos_token_id of .*; found 999; expected below 261"),
    "tokenizer.ggml.tokens": (None, "has no tokenizer.ggml.tokens"),
    "tokenizer.ggml.model": (None, "has no tokenizer.ggml.model"),
}


@pytest.mark.parametrize("key", _WRONG)
def test_missing_and_wrong_metadata_is_named(gguf_recipe: Any, tmp_path: Path, key: str) -> None:
    value, message = _WRONG[key]
    with pytest.raises(ModelError, match=message):
        _open(gguf_recipe(metadata={key: value}), tmp_path)


def test_missing_layer_is_named(gguf_recipe: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tensor model\.layers\.2\.input_layernorm\.weight is missing"):
        _open(gguf_recipe(metadata={"llama.block_count": 3}), tmp_path)


@pytest.mark.parametrize(
    "name", ["blk.0.attn_qkv.weight", "blk.0.ffn_gate_exps.weight", "blk.2.attn_norm.weight"]
)
def test_tensor_without_a_place_in_the_model_is_refused(gguf_recipe: Any, tmp_path: Path, name: str) -> None:
    recipe = gguf_recipe()
    recipe.tensors[name] = np.zeros(256, np.float32)
    with pytest.raises(UnsupportedError, match=f"tensor {name} of"):
        _open(recipe, tmp_path)


def test_digest_follows_content_and_not_place(gguf_recipe: Any, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first = _open(gguf_recipe(), tmp_path).digest()
    moved = GgufFile([gguf_recipe().write(tmp_path / "other" / "moved.gguf")])
    changed = gguf_recipe()
    changed.tensors["output_norm.weight"][0] += 1
    assert moved.digest() == first
    assert GgufFile([changed.write(tmp_path / "changed.gguf")]).digest() != first
