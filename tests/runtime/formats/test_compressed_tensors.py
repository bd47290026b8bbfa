"""Packed tensors are those of compressed-tensors, and the library gives back the exact weight."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationConfig

from gristmill.runtime.errors import ModelError, UnsupportedError
from gristmill.runtime.formats.compressed_tensors import (
    decode,
    encode,
    layout,
    quantization_config,
    stored_scheme,
)
from gristmill.runtime.safetensors_writer import TensorSpec
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme
from gristmill.runtime.sources.base import Tensor

Random = Callable[..., QuantizedTensor]
SCHEMES = [
    QuantScheme(bits=bits, group_size=group_size, symmetric=symmetric)
    for bits in (2, 3, 4, 5, 6, 8)
    for group_size in (32, -1)
    for symmetric in (True, False)
]


def to_torch(tensor: Tensor) -> torch.Tensor:
    if tensor.dtype.name == "bfloat16":
        return torch.from_numpy(tensor.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(tensor)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_the_library_decompresses_to_the_exact_weight(scheme: QuantScheme, random_quantized: Random) -> None:
    tensor = random_quantized(scheme, rows=33, columns=96)
    state = {name.removeprefix("p."): to_torch(piece) for name, piece in encode("p", tensor).items()}
    config = QuantizationConfig.model_validate(quantization_config({"p": scheme}, []))
    group = config.config_groups["group_0"]
    assert PackedQuantizationCompressor.can_compress(torch.nn.Linear, group)
    weight = PackedQuantizationCompressor.decompress(state, group)["weight"]
    assert torch.equal(weight, torch.from_numpy(tensor.dequantize()).to(torch.bfloat16))


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_decoding_undoes_encoding(scheme: QuantScheme, random_quantized: Random) -> None:
    tensor = random_quantized(scheme, rows=33, columns=96)
    decoded = decode("p", encode("p", tensor).__getitem__, scheme)
    assert decoded.scheme == scheme
    np.testing.assert_array_equal(decoded.codes, tensor.codes)
    np.testing.assert_array_equal(decoded.scales, tensor.scales)
    np.testing.assert_array_equal(decoded.dequantize(), tensor.dequantize())


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_layout_tells_what_encode_makes(scheme: QuantScheme, random_quantized: Random) -> None:
    encoded = encode("p", random_quantized(scheme, rows=33, columns=96))
    assert {name: TensorSpec.of(piece) for name, piece in encoded.items()} == layout("p", scheme, (33, 96))


def test_golden_words_of_a_symmetric_weight() -> None:
    codes = np.array([[0, 1, 2, 3, 4, 5, 6, 7], [8] * 8], np.uint8)
    tensor = QuantizedTensor(QuantScheme(4, -1, symmetric=True), codes, np.array([[0.5], [1]], np.float32))
    encoded = encode("p", tensor)
    assert encoded["p.weight_packed"].view(np.uint32).tolist() == [[0x76543210], [0x88888888]]
    assert encoded["p.weight_shape"].tolist() == [2, 8]
    assert encoded["p.weight_scale"].astype(np.float32).tolist() == [[0.5], [1]]
    assert "p.weight_zero_point" not in encoded


def test_zero_points_are_packed_along_the_rows() -> None:
    zeros = np.stack([np.arange(8), 15 - np.arange(8)], axis=1).astype(np.uint8)
    scheme = QuantScheme(4, 4, symmetric=False)
    tensor = QuantizedTensor(scheme, np.zeros((8, 8), np.uint8), np.ones((8, 2), np.float32), zeros)
    packed = encode("p", tensor)["p.weight_zero_point"]
    assert packed.view(np.uint32).tolist() == [[0x76543210, 0x89ABCDEF]]


@pytest.mark.parametrize("scale_dtype", ["bfloat16", "float16", "float32"])
def test_scale_type_is_that_of_the_scheme_and_is_found_again(
    scale_dtype: str, random_quantized: Random
) -> None:
    scheme = QuantScheme.from_dict({**SCHEMES[0].to_dict(), "scale_dtype": scale_dtype})
    encoded = encode("p", random_quantized(scheme, rows=8, columns=64))
    assert encoded["p.weight_scale"].dtype.name == scale_dtype
    assert stored_scheme("p", SCHEMES[0], lambda name: encoded[name].dtype) == scheme


def test_scale_that_its_type_can_not_hold_is_refused() -> None:
    scheme = QuantScheme(4, -1, symmetric=True)
    tensor = QuantizedTensor(scheme, np.zeros((1, 8), np.uint8), np.array([[1 + 2**-12]], np.float32))
    with pytest.raises(UnsupportedError, match=r"scales of model\.up can't be stored exactly as bfloat16"):
        encode("model.up", tensor)


def test_group_index_is_refused(random_quantized: Random) -> None:
    plain = random_quantized(QuantScheme(4, 32, symmetric=True), rows=8, columns=64)
    tensor = QuantizedTensor(plain.scheme, plain.codes, plain.scales, None, plain.column_groups[::-1].copy())
    with pytest.raises(UnsupportedError, match=r"model\.up .* use static groups"):
        encode("model.up", tensor)


@pytest.mark.parametrize(
    ("piece", "value"),
    [
        ("weight_shape", np.array([8, 72])),
        ("weight_shape", np.array([8])),
        ("weight_scale", np.zeros((8, 2), np.float16)),
        ("weight_packed", np.zeros((8, 7), np.int32)),
        ("weight_zero_point", np.zeros((8, 2), np.int32)),
    ],
)
def test_pieces_that_do_not_fit_together_are_refused(
    piece: str, value: Tensor, random_quantized: Random
) -> None:
    scheme = QuantScheme(4, 8, symmetric=False)
    encoded = encode("p", random_quantized(scheme, rows=8, columns=64)) | {f"p.{piece}": value}
    with pytest.raises(ModelError, match="tensor p"):
        decode("p", encoded.__getitem__, scheme)
