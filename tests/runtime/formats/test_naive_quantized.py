"""8-bit weights with quantized inputs are stored as compressed-tensors has them, and transformers agrees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from compressed_tensors.compressors.format import infer_module_format
from compressed_tensors.compressors.naive_quantized import (
    FloatQuantizationCompressor,
    IntQuantizationCompressor,
    NaiveQuantizationCompressor,
)
from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme, preset_name_to_scheme
from transformers import AutoModelForCausalLM

from gristmill.runtime.errors import ModelError, UnsupportedError
from gristmill.runtime.formats.compressed_tensors import (
    decode,
    encode,
    layout,
    parse_config,
    quantization_config,
)
from gristmill.runtime.safetensors_writer import TensorSpec
from gristmill.runtime.scheme import ActivationScheme, QuantizedTensor, QuantScheme
from gristmill.runtime.sources.base import Tensor
from gristmill.runtime.sources.hf_folder import HfFolder
from tests.runtime.formats.reference_logits import written_logits

Random = Callable[..., QuantizedTensor]

TOKEN = ActivationScheme("int", 8, "token", dynamic=True)
W8A8 = QuantScheme(8, -1, True, activation=TOKEN)
W4A8 = QuantScheme(4, 32, True, activation=TOKEN)
W4A8_CHANNEL = QuantScheme(4, -1, True, activation=TOKEN)
W8A8_STATIC = QuantScheme(8, -1, True, activation=ActivationScheme("int", 8, "tensor", dynamic=False))
FP8_DYNAMIC = QuantScheme(
    8, -1, True, "float", activation=ActivationScheme("float", 8, "token", dynamic=True)
)
FP8_STATIC = QuantScheme(
    8, -1, True, "float", activation=ActivationScheme("float", 8, "tensor", dynamic=False)
)
FP8_BLOCK = QuantScheme(8, 32, True, "float", activation=ActivationScheme("float", 8, "group", dynamic=True))
FP8_WEIGHTS = QuantScheme(8, -1, True, "float")
SCHEMES = (W4A8, W4A8_CHANNEL, W8A8, W8A8_STATIC, FP8_DYNAMIC, FP8_STATIC, FP8_BLOCK, FP8_WEIGHTS)
ONE = np.array([[1]], np.float32)
COMPRESSORS: dict[str, Any] = {
    "int-quantized": IntQuantizationCompressor,
    "float-quantized": FloatQuantizationCompressor,
    "naive-quantized": NaiveQuantizationCompressor,
}

every_scheme = pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)


def to_torch(tensor: Tensor) -> torch.Tensor:
    if tensor.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(tensor.view(np.int16)).view(torch.bfloat16)
    if tensor.dtype == ml_dtypes.float8_e4m3fn:
        return torch.from_numpy(tensor.view(np.uint8)).view(torch.float8_e4m3fn)
    return torch.from_numpy(tensor)


@every_scheme
def test_the_library_decompresses_to_the_exact_weight(scheme: QuantScheme, random_quantized: Random) -> None:
    tensor = random_quantized(scheme, rows=64, columns=96)
    state = {name.removeprefix("p."): to_torch(piece) for name, piece in encode("p", tensor).items()}
    config = QuantizationConfig.model_validate(quantization_config({"p": scheme}, []))
    compressor = COMPRESSORS[str(config.format)]
    assert compressor.can_compress(torch.nn.Linear, config.config_groups["group_0"])
    weight = compressor.decompress(state, config.config_groups["group_0"])["weight"]
    assert torch.equal(weight, torch.from_numpy(tensor.dequantize()).to(torch.bfloat16))


@every_scheme
def test_decoding_undoes_encoding(scheme: QuantScheme, random_quantized: Random) -> None:
    tensor = random_quantized(scheme, rows=72, columns=96)
    encoded = encode("p", tensor)
    assert {name: TensorSpec.of(piece) for name, piece in encoded.items()} == layout("p", scheme, (72, 96))
    decoded = decode("p", encoded.__getitem__, scheme)
    np.testing.assert_array_equal(decoded.codes, tensor.codes)
    np.testing.assert_array_equal(decoded.scales, tensor.scales)
    assert (decoded.scheme, decoded.input_scale) == (scheme, tensor.input_scale)


@every_scheme
def test_reading_the_configuration_undoes_writing(scheme: QuantScheme) -> None:
    config = quantization_config({"a": scheme, "b": scheme}, ["c", "lm_head"])
    assert parse_config(config, ["a", "b", "c"]) == {"a": scheme, "b": scheme}


def test_formats_that_meet_in_one_model_are_named_for_each_group() -> None:
    schemes = {"a": W8A8, "b": QuantScheme(4, 32, symmetric=True)}
    config = quantization_config(schemes, [])
    assert config["format"] == "mixed-precision"
    formats = [group["format"] for group in config["config_groups"].values()]
    assert formats == ["int-quantized", "pack-quantized"]
    assert parse_config(config, ["a", "b"]) == schemes


def test_golden_bytes_of_int8() -> None:
    codes = np.array([[0, 1, 127, 128, 129, 255]], np.uint8)
    encoded = encode("p", QuantizedTensor(W8A8, codes, np.array([[0.5]], np.float32)))
    assert encoded["p.weight"].dtype == np.int8
    assert encoded["p.weight"].tolist() == [[-128, -127, -1, 0, 1, 127]]
    assert set(encoded) == {"p.weight", "p.weight_scale"}


def test_golden_bytes_of_int4() -> None:
    """As compressed-tensors infers for W4A8: a byte each, though four bits would do."""
    encoded = encode("p", QuantizedTensor(W4A8_CHANNEL, np.array([[0, 7, 8, 15]], np.uint8), ONE))
    assert encoded["p.weight"].dtype == np.int8
    assert encoded["p.weight"].tolist() == [[-8, -1, 0, 7]]
    assert W4A8_CHANNEL.bits_per_weight(1600) == 8.01


@every_scheme
def test_the_library_infers_the_same_format(scheme: QuantScheme) -> None:
    config = QuantizationConfig.model_validate(quantization_config({"p": scheme}, []))
    group = config.config_groups["group_0"]
    assert isinstance(group, QuantizationScheme)
    assert infer_module_format(torch.nn.Linear, group).value == config.format


def test_w4a8_is_the_preset_but_for_the_group_size() -> None:
    preset = preset_name_to_scheme("W4A8", ["Linear"])
    written = quantization_config({"p": replace(W4A8, group_size=128)}, [])["config_groups"]["group_0"]
    read = QuantizationScheme.model_validate(written)
    assert (read.weights, read.input_activations) == (preset.weights, preset.input_activations)


@pytest.mark.parametrize("value", [-9, 8, 127])
def test_a_stored_integer_beyond_its_width_is_refused(value: int) -> None:
    encoded = encode("p", QuantizedTensor(W4A8_CHANNEL, np.array([[0, 7, 8, 15]], np.uint8), ONE))
    encoded["p.weight"] = np.array([[0, 1, value, 2]], np.int8)
    with pytest.raises(ModelError, match=r"tensor p\.weight; found .*; expected signed integers of 4 bits"):
        decode("p", encoded.__getitem__, W4A8_CHANNEL)


def test_golden_bytes_of_float8_blocks() -> None:
    codes = np.full((40, 64), 0x38, np.uint8)  # 1.0
    scales = np.repeat(np.array([[1, 2], [4, 8]], np.float32), 32, axis=0)[:40]
    encoded = encode("p", QuantizedTensor(FP8_BLOCK, codes, scales))
    assert encoded["p.weight"].astype(np.float32).max() == 1
    assert encoded["p.weight_scale"].astype(np.float32).tolist() == [[1, 2], [4, 8]]


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_a_stored_nan_is_refused(code: int) -> None:
    tensor = QuantizedTensor(FP8_DYNAMIC, np.full((2, 8), 0x38, np.uint8), np.ones((2, 1), np.float32))
    tensor.codes[1, 3] = code
    with pytest.raises(ModelError, match=r"tensor p\.weight; found NaN"):
        decode("p", encode("p", tensor).__getitem__, FP8_DYNAMIC)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_stored_input_scale_that_is_no_scale_is_refused(value: float, random_quantized: Random) -> None:
    encoded = encode("p", random_quantized(W8A8_STATIC, rows=8, columns=64))
    encoded["p.input_scale"] = np.array([value], ml_dtypes.bfloat16)
    with pytest.raises(ModelError, match=r"tensor p\.input_scale"):
        decode("p", encoded.__getitem__, W8A8_STATIC)


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        (replace(W8A8, bits=5), "4 bits, or 8 with one scale a row"),
        (replace(W4A8, activation=replace(TOKEN, bits=4)), "inputs of 8 bits"),
        (replace(W4A8, activation=replace(TOKEN, granularity="group")), "inputs in groups for"),
        (replace(W8A8, activation=FP8_DYNAMIC.activation), "of the weights' type"),
        (replace(W8A8, group_size=32), "one scale a row"),
        (replace(W8A8, symmetric=False), "no zero points"),
        (replace(FP8_DYNAMIC, group_size=32), "inputs in groups for weights in blocks"),
        (replace(FP8_BLOCK, group_size=-1), "inputs in groups for weights in blocks"),
    ],
)
def test_combinations_that_engines_do_not_read_are_refused(
    scheme: QuantScheme, expected: str, random_quantized: Random
) -> None:
    with pytest.raises(UnsupportedError, match=expected):
        encode("model.up", random_quantized(scheme, rows=32, columns=64))


def block(**activations: object) -> dict[str, Any]:
    """The block of FP8_DYNAMIC with other activations."""
    config = quantization_config({"a": FP8_DYNAMIC}, [])
    config["config_groups"]["group_0"]["input_activations"] |= activations
    return config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_bits": 4}, "num_bits; found 4"),
        ({"symmetric": False}, "symmetric; found False"),
        ({"strategy": "channel"}, "strategy; found 'channel'"),
        ({"strategy": "tensor"}, "dynamic; found True"),
        ({"dynamic": False}, "dynamic; found False"),
        ({"dynamic": "local"}, "dynamic; found 'local'"),
        ({"strategy": "group", "group_size": 64}, "group_size; found 64"),
        ({"group_size": 64}, "group_size; found 64"),
        ({"observers": 1}, "unknown observers"),
    ],
)
def test_activations_that_are_not_read_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        parse_config(block(**changes), ["a"])


@every_scheme
def test_transformers_computes_the_logits_of_the_reference_executor(
    tmp_path: Path, tiny_untied_source: HfFolder, scheme: QuantScheme
) -> None:
    """In float32, where both round inputs to the same codes."""
    tokens = list(range(3, 40))
    ours = written_logits(tmp_path / "out", tiny_untied_source, scheme, tokens)
    with torch.no_grad():
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
        theirs = loaded(torch.tensor([tokens])).logits[0].numpy()
    # Without quantized inputs they differ by 0.004 of the largest logit and more.
    assert np.abs(ours - theirs).max() < 1e-4 * np.abs(theirs).max()
