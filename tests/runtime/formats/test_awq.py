"""AWQ "GEMM" tensors, against a slow reader written from the format's description alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gristmill.runtime.errors import ModelError, UnsupportedError
from gristmill.runtime.formats.awq import decode, encode, layout, parse_config, quantization_config
from gristmill.runtime.safetensors_writer import TensorSpec
from gristmill.runtime.scheme import ActivationScheme, QuantizedTensor, QuantScheme
from gristmill.runtime.sources.base import Tensor

Random = Callable[..., QuantizedTensor]
STORED = QuantScheme(4, 32, symmetric=False, scale_dtype="float16")
SCHEMES = [
    QuantScheme(4, group_size, symmetric, scale_dtype=scale_dtype)
    for group_size in (32, -1)
    for symmetric in (True, False)
    for scale_dtype in ("bfloat16", "float16")
]


def nibble(words: NDArray[Any], row: int, column: int) -> int:
    """Nibble i of word c holds column 8c + (0, 2, 4, 6, 1, 3, 5, 7)[i]."""
    position = (0, 2, 4, 6, 1, 3, 5, 7).index(column % 8)
    return int(words[row, column // 8]) >> (4 * position) & 15


def dequantize_slowly(tensors: dict[str, Tensor]) -> NDArray[np.float32]:
    """`W[n, k] = (q[k, n] - z[k // g, n]) * s[k // g, n]`."""
    qweight, qzeros, scales = (tensors[f"p.{piece}"] for piece in ("qweight", "qzeros", "scales"))
    columns, (groups, rows) = qweight.shape[0], scales.shape
    weight = np.zeros((rows, columns), np.float32)
    for n, k in np.ndindex(rows, columns):
        group = k // (columns // groups)
        weight[n, k] = (nibble(qweight, k, n) - nibble(qzeros, group, n)) * float(scales[group, n])
    return weight


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: f"{scheme.name}-{scheme.scale_dtype}")
def test_the_slow_reader_finds_the_exact_weight(scheme: QuantScheme, random_quantized: Random) -> None:
    tensor = random_quantized(scheme, rows=24, columns=96)
    np.testing.assert_array_equal(dequantize_slowly(encode("p", tensor)), tensor.dequantize())


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: f"{scheme.name}-{scheme.scale_dtype}")
def test_decoding_finds_the_same_codes(scheme: QuantScheme, random_quantized: Random) -> None:
    tensor = random_quantized(scheme, rows=24, columns=96)
    read = QuantScheme(4, scheme.group_size, symmetric=False, scale_dtype="float16")
    decoded = decode("p", encode("p", tensor).__getitem__, read)
    np.testing.assert_array_equal(decoded.codes, tensor.codes)
    np.testing.assert_array_equal(decoded.dequantize(), tensor.dequantize())


def test_layout_tells_what_encode_makes(random_quantized: Random) -> None:
    encoded = encode("p", random_quantized(STORED, rows=24, columns=96))
    assert {name: TensorSpec.of(piece) for name, piece in encoded.items()} == layout("p", STORED, (24, 96))


def test_golden_words() -> None:
    codes = np.arange(8, dtype=np.uint8)[:, None].repeat(2, axis=1)
    tensor = QuantizedTensor(QuantScheme(4, -1, symmetric=True), codes, np.ones((8, 1), np.float32))
    encoded = encode("p", tensor)
    assert encoded["p.qweight"].view(np.uint32).tolist() == [[0x75316420], [0x75316420]]
    assert encoded["p.qzeros"].view(np.uint32).tolist() == [[0x88888888]]
    assert encoded["p.scales"].tolist() == [[1.0] * 8]


@pytest.mark.parametrize(
    ("scheme", "rows", "message"),
    [
        (
            QuantScheme(8, 32, symmetric=True),
            8,
            "model.up in the format AWQ; found W8A16_G32; expected 4-bit",
        ),
        (QuantScheme(4, 32, symmetric=True), 12, "model.up in the format AWQ; found 12 output features"),
        (QuantScheme(4, 32, True, activation=ActivationScheme("int", 8, "token", True)), 8, "found W4A8_G32"),
    ],
)
def test_what_the_format_can_not_hold_is_refused(
    scheme: QuantScheme, rows: int, message: str, random_quantized: Random
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        encode("model.up", random_quantized(scheme, rows=rows, columns=64))


@pytest.mark.parametrize("scale", [1e5, 2.0**-30])
def test_bfloat16_scale_out_of_the_range_of_float16_is_refused(scale: float) -> None:
    scales = np.full((8, 1), scale, np.float32).view(np.uint32) & 0xFFFF0000
    scheme = QuantScheme(4, -1, symmetric=True)
    tensor = QuantizedTensor(scheme, np.zeros((8, 8), np.uint8), scales.view(np.float32))
    with pytest.raises(UnsupportedError, match=r"scales of model\.up can't be stored exactly as float16"):
        encode("model.up", tensor)


def test_group_index_is_refused(random_quantized: Random) -> None:
    plain = random_quantized(QuantScheme(4, 32, symmetric=True), rows=8, columns=64)
    tensor = QuantizedTensor(plain.scheme, plain.codes, plain.scales, None, plain.column_groups[::-1].copy())
    with pytest.raises(UnsupportedError, match="assigned to groups by an index"):
        encode("model.up", tensor)


@pytest.mark.parametrize(
    ("piece", "value"),
    [
        ("qweight", np.zeros(8, np.int32)),
        ("qweight", np.zeros((60, 1), np.int32)),
        ("qzeros", np.zeros((2, 2), np.int32)),
        ("scales", np.zeros((2, 8), np.float32)),
    ],
)
def test_pieces_that_do_not_fit_together_are_refused(
    piece: str, value: Tensor, random_quantized: Random
) -> None:
    encoded = encode("p", random_quantized(STORED, rows=8, columns=64)) | {f"p.{piece}": value}
    with pytest.raises(ModelError, match="p"):
        decode("p", encoded.__getitem__, STORED)


def test_configuration_is_that_of_autoawq() -> None:
    assert quantization_config({"layers.0.up": STORED}, ["layers.1.up", "lm_head"]) == {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 32,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": ["layers.1.up", "lm_head"],
    }


def test_reading_undoes_writing() -> None:
    config = quantization_config({"layers.0.up": STORED}, ["layers.1.up", "lm_head"])
    assert parse_config(config, ["layers.0.up", "layers.1.up", "lm_head"]) == {"layers.0.up": STORED}


def test_names_of_autoawq_itself_are_read() -> None:
    config = {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}
    assert parse_config(config, ["layers.0.up", "lm_head"]) == {"layers.0.up": STORED}


def test_quantized_head_is_read() -> None:
    config = {"bits": 4, "group_size": 32, "lm_head": True}
    assert parse_config(config, ["lm_head"]) == {"lm_head": STORED}


def test_mixed_group_sizes_are_refused() -> None:
    other = QuantScheme(4, 64, symmetric=False)
    with pytest.raises(
        UnsupportedError, match=r"model\.up in the format AWQ; found group size 64; expected 32"
    ):
        quantization_config({"model.q": STORED, "model.up": other}, [])


def test_skipped_name_inside_a_quantized_one_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"layers\.1\.up can't be skipped"):
        quantization_config({"model.layers.1.up": STORED}, ["layers.1.up"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "gemv"}, "version; found gemv"),
        ({"bits": 8}, "bits; found 8"),
        ({"w_bit": 4}, "bits or w_bit; found"),
        ({"group_size": None}, "group_size; found"),
        ({"group_size": 0}, "group_size; found 0"),
        ({"zero_point": False}, "zero_point; found False"),
        ({"modules_to_not_convert": "lm_head"}, "modules_to_not_convert; found lm_head"),
        ({"desc_act": True}, "unknown desc_act"),
    ],
)
def test_what_is_not_read_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        parse_config({"bits": 4, "group_size": 32, "zero_point": True} | change, ["up"])
