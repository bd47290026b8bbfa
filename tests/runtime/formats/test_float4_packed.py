"""Float4 weights are stored as compressed-tensors has them, and transformers agrees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from compressed_tensors.compressors.format import infer_module_format
from compressed_tensors.compressors.mxfp4 import MXFP4PackedCompressor
from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
from compressed_tensors.quantization import QuantizationScheme, preset_name_to_scheme
from transformers import AutoModelForCausalLM

from gristmill.runtime.errors import IntegrityError, ModelError, UnsupportedError
from gristmill.runtime.formats.compressed_tensors import (
    decode,
    encode,
    layout,
    parse_config,
    quantization_config,
)
from gristmill.runtime.formats.verify import verify_checkpoint
from gristmill.runtime.formats.write import write_checkpoint
from gristmill.runtime.safetensors_writer import TensorSpec
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme
from gristmill.runtime.sources.base import Tensor
from gristmill.runtime.sources.hf_folder import HfFolder
from tests.runtime.formats.reference_logits import written_logits
from tests.tiny_checkpoints import quantize_source

Random = Callable[..., QuantizedTensor]

NVFP4 = QuantScheme(4, 16, True, "float", "float8_e4m3fn")
MXFP4 = QuantScheme(4, 32, True, "float", "float8_e8m0fnu")
COMPRESSORS: dict[str, Any] = {"NVFP4A16": NVFP4PackedCompressor, "MXFP4A16": MXFP4PackedCompressor}

both = pytest.mark.parametrize("scheme", [NVFP4, MXFP4], ids=lambda scheme: scheme.name)


def group(scheme: QuantScheme) -> QuantizationScheme:
    written = quantization_config({"p": scheme}, [])["config_groups"]["group_0"]
    return QuantizationScheme.model_validate(written)


def to_torch(tensor: Tensor) -> torch.Tensor:
    if tensor.dtype == ml_dtypes.float8_e4m3fn:
        return torch.from_numpy(tensor.view(np.uint8)).view(torch.float8_e4m3fn)
    return torch.from_numpy(tensor)


def stored(tensor: QuantizedTensor) -> dict[str, torch.Tensor]:
    return {name.removeprefix("p."): to_torch(piece) for name, piece in encode("p", tensor).items()}


@both
def test_the_library_decompresses_to_the_exact_weight(scheme: QuantScheme, random_quantized: Random) -> None:
    tensor = random_quantized(scheme, rows=48, columns=96)
    weight = COMPRESSORS[scheme.name].decompress(stored(tensor), group(scheme))["weight"]
    assert torch.equal(weight.float(), torch.from_numpy(tensor.dequantize()))


@both
def test_the_library_compresses_to_the_same_bytes(scheme: QuantScheme, random_quantized: Random) -> None:
    tensor = random_quantized(scheme, rows=48, columns=96)
    ours, unit = stored(tensor), tensor.global_scale or 1.0
    state = {
        "weight": torch.from_numpy(tensor.dequantize()),
        "weight_scale": torch.from_numpy(tensor.scales * unit),
    }
    if scheme.has_global_scale:
        state["weight_global_scale"] = torch.tensor([unit])
    theirs = COMPRESSORS[scheme.name].compress(state, group(scheme))
    assert theirs.keys() == ours.keys()
    for name, piece in ours.items():
        assert piece.dtype == theirs[name].dtype
        assert torch.equal(piece.view(torch.uint8), theirs[name].view(torch.uint8)), name


@both
def test_the_scheme_is_the_preset_and_implies_the_format(scheme: QuantScheme) -> None:
    read = group(scheme)
    assert read.weights == preset_name_to_scheme(scheme.name, ["Linear"]).weights
    assert read.input_activations is None
    config = quantization_config({"p": scheme}, [])
    assert infer_module_format(torch.nn.Linear, read).value == config["format"]


@both
def test_decoding_undoes_encoding(scheme: QuantScheme, random_quantized: Random) -> None:
    tensor = random_quantized(scheme, rows=6, columns=96)
    encoded = encode("p", tensor)
    assert {name: TensorSpec.of(piece) for name, piece in encoded.items()} == layout("p", scheme, (6, 96))
    decoded = decode("p", encoded.__getitem__, scheme)
    np.testing.assert_array_equal(decoded.codes, tensor.codes)
    np.testing.assert_array_equal(decoded.scales, tensor.scales)
    assert (decoded.scheme, decoded.global_scale) == (scheme, tensor.global_scale)


@both
def test_reading_the_configuration_undoes_writing(scheme: QuantScheme) -> None:
    schemes = {"a": scheme, "b": QuantScheme(4, 32, symmetric=True)}
    config = quantization_config(schemes, ["c"])
    assert config["format"] == "mixed-precision"
    assert parse_config(config, ["a", "b", "c"]) == schemes


def test_golden_bytes() -> None:
    codes = np.arange(32, dtype=np.uint8).reshape(1, 32) % 16
    encoded = encode("p", QuantizedTensor(MXFP4, codes, np.array([[0.25]], np.float32)))
    assert encoded["p.weight_packed"].tobytes() == bytes.fromhex("1032547698badcfe" * 2)
    assert encoded["p.weight_scale"].tolist() == [[125]]
    scales = np.array([[0.25, 1.5]], np.float32)
    encoded = encode("p", QuantizedTensor(NVFP4, codes, scales, global_scale=16.0))
    assert encoded["p.weight_scale"].astype(np.float32).tolist() == [[4.0, 24.0]]
    assert encoded["p.weight_global_scale"].tolist() == [16.0]


@pytest.mark.parametrize(
    ("scheme", "name", "value"),
    [
        (NVFP4, "weight_scale", np.full((2, 2), np.nan, ml_dtypes.float8_e4m3fn)),
        (MXFP4, "weight_scale", np.full((2, 1), 255, np.uint8)),
        (NVFP4, "weight_global_scale", np.zeros(1, np.float32)),
        (NVFP4, "weight_global_scale", np.full(1, np.inf, np.float32)),
        (NVFP4, "weight_packed", np.zeros((2, 8), np.uint8)),
        (MXFP4, "weight_packed", np.zeros(16, np.uint8)),
    ],
)
def test_tensors_that_mean_no_weight_are_refused_by_name(
    scheme: QuantScheme, name: str, value: Tensor, random_quantized: Random
) -> None:
    encoded = {**encode("p", random_quantized(scheme, rows=2, columns=32)), f"p.{name}": value}
    with pytest.raises(ModelError, match=r"tensor p\."):
        decode("p", encoded.__getitem__, scheme)


def test_scales_that_the_format_can_not_hold_are_refused(random_quantized: Random) -> None:
    tensor = random_quantized(MXFP4, rows=2, columns=32)
    tensor.scales[0, 0] = 3.0
    with pytest.raises(UnsupportedError, match="scales of p can't be stored exactly as float8_e8m0fnu"):
        encode("p", tensor)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_size": 64}, "group_size; found 64; expected 16 or 32"),
        ({"strategy": "group"}, "strategy; found 'group'; expected 'tensor_group'"),
        ({"scale_dtype": "torch.uint8"}, "scale_dtype; found 'torch.uint8'"),
        ({"symmetric": False}, "symmetric; found False"),
    ],
)
def test_other_float4_weights_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    config = quantization_config({"a": NVFP4}, [])
    config["config_groups"]["group_0"]["weights"] |= changes
    with pytest.raises(UnsupportedError, match=message):
        parse_config(config, ["a"])


def test_float4_inputs_are_refused_by_name() -> None:
    """What the preset NVFP4 has, without A16."""
    config = quantization_config({"a": NVFP4}, [])
    config["config_groups"]["group_0"]["input_activations"] = {"num_bits": 4, "type": "float"}
    with pytest.raises(UnsupportedError, match="input_activations beside float4 weights"):
        parse_config(config, ["a"])


@both
def test_transformers_computes_the_logits_of_the_reference_executor(
    tmp_path: Path, tiny_untied_source: HfFolder, scheme: QuantScheme
) -> None:
    """In float32, of the bfloat16 weights that the library unpacks float4 to."""
    tokens = list(range(3, 40))
    ours = written_logits(tmp_path / "out", tiny_untied_source, scheme, tokens)
    with torch.no_grad():
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.bfloat16)
        loaded(torch.tensor([tokens]))  # unpacks the weights
        torch.nn.Module.float(loaded)
        theirs = loaded(torch.tensor([tokens])).logits[0].numpy()
    assert np.abs(ours - theirs).max() < 1e-4 * np.abs(theirs).max()


def test_another_global_scale_is_found_when_a_checkpoint_is_verified(
    tmp_path: Path, tiny_untied_source: HfFolder
) -> None:
    quantized = quantize_source(tiny_untied_source, lambda name: NVFP4)
    write_checkpoint(tmp_path / "out", tiny_untied_source, quantized, {}, "compressed-tensors")
    name = next(iter(quantized))
    tensor = quantized[name]
    other = QuantizedTensor(NVFP4, tensor.codes, tensor.scales, global_scale=32.0)
    with pytest.raises(IntegrityError, match=f"global scale of {name}"):
        verify_checkpoint(tmp_path / "out", {**quantized, name: other}, {})
