"""A checkpoint gives each layer of the plan its weight, packed or plain."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gristmill.runtime.architectures import plan_model
from gristmill.runtime.checkpoint import open_checkpoint
from gristmill.runtime.formats.select import FormatName
from gristmill.runtime.formats.write import write_checkpoint
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme
from gristmill.runtime.sources.base import ModelSource
from tests.tiny_checkpoints import dense_mlp

Quantize = Callable[..., dict[str, QuantizedTensor]]
ASYM = QuantScheme(4, 32, symmetric=False)


def test_plain_folder_gives_plain_weights(tiny_llama: Path, tiny_source: ModelSource) -> None:
    checkpoint = open_checkpoint(tiny_llama)
    assert checkpoint.schemes == {}
    assert checkpoint.folder == tiny_llama
    linear = dense_mlp(checkpoint.plan.layers[1]).up
    weight = checkpoint.weight(linear)
    assert isinstance(weight, np.ndarray)
    assert weight.tobytes() == tiny_source.load(linear.weight).tobytes()


def test_packed_folder_gives_the_quantized_weights(
    tmp_path: Path, tiny_source: ModelSource, quantize_model: Quantize
) -> None:
    quantized = quantize_model(tiny_source, lambda name: QuantScheme(8, -1, symmetric=True))
    write_checkpoint(tmp_path / "out", tiny_source, quantized, {}, "compressed-tensors")
    checkpoint = open_checkpoint(tmp_path / "out")
    assert checkpoint.plan == plan_model(tiny_source.config)
    for linear in checkpoint.plan.linears:
        weight = checkpoint.weight(linear)
        assert isinstance(weight, QuantizedTensor)
        assert weight.scheme == checkpoint.schemes[linear.name]
        np.testing.assert_array_equal(weight.dequantize(), quantized[linear.name].dequantize())


def test_mixed_folder_keeps_the_scheme_of_each_layer(
    tmp_path: Path, tiny_source: ModelSource, quantize_model: Quantize
) -> None:
    w8 = QuantScheme(8, 64, symmetric=True)
    schemes = {
        linear.name: w8 if "down_proj" in linear.name else ASYM
        for linear in plan_model(tiny_source.config).linears
        if "layers.1." not in linear.name
    }
    quantized = quantize_model(tiny_source, schemes.get)
    write_checkpoint(tmp_path / "out", tiny_source, quantized, {}, "compressed-tensors", shard_bytes=50_000)
    checkpoint = open_checkpoint(tmp_path / "out")
    assert checkpoint.schemes == schemes
    assert isinstance(checkpoint.weight(dense_mlp(checkpoint.plan.layers[1]).up), np.ndarray)


@pytest.mark.parametrize("format", ["compressed-tensors", "awq"])
def test_scheme_tells_the_type_of_the_stored_scales(
    tmp_path: Path, tiny_llama: Path, tiny_source: ModelSource, quantize_model: Quantize, format: FormatName
) -> None:
    half = QuantScheme(4, 32, symmetric=False, scale_dtype="float16")
    folder = shutil.copytree(tiny_llama, tmp_path / "half")
    config = json.loads((folder / "config.json").read_bytes()) | {"dtype": "float16"}
    (folder / "config.json").write_text(json.dumps(config))
    source = type(tiny_source)(folder)  # type: ignore[call-arg]
    write_checkpoint(tmp_path / "out", source, quantize_model(source, lambda name: half), {}, format)
    assert set(open_checkpoint(tmp_path / "out").schemes.values()) == {half}


def test_awq_settings_in_a_file_of_their_own_are_found(
    tmp_path: Path, tiny_source: ModelSource, quantize_model: Quantize
) -> None:
    write_checkpoint(tmp_path / "out", tiny_source, quantize_model(tiny_source, lambda name: ASYM), {}, "awq")
    file = tmp_path / "out" / "config.json"
    config = json.loads(file.read_bytes())
    del config["quantization_config"]
    file.write_text(json.dumps(config))
    settings = {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}
    (tmp_path / "out" / "quant_config.json").write_text(json.dumps(settings))
    assert len(open_checkpoint(tmp_path / "out").schemes) == 21


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_plan_shapes_are_those_of_transformers(family: str) -> None:
    import transformers

    config = getattr(transformers, f"{family}Config")(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, tie_word_embeddings=False,
    )  # fmt: skip
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    state = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert plan_model(model.config.to_dict()).tensor_shapes() == state
