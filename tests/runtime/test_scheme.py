"""Schemes refuse what has no meaning, say their names, and count their bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gristmill.runtime.errors import InputError
from gristmill.runtime.scheme import ActivationScheme, QuantizedTensor, QuantScheme

TOKEN = ActivationScheme("int", 8, "token", dynamic=True)
STATIC = ActivationScheme("int", 8, "tensor", dynamic=False)
FLOAT_TOKEN = ActivationScheme("float", 8, "token", dynamic=True)
NVFP4 = QuantScheme(4, 16, True, "float", "float8_e4m3fn")
MXFP4 = QuantScheme(4, 32, True, "float", "float8_e8m0fnu")
FLOAT_GROUP = ActivationScheme("float", 8, "group", dynamic=True)


@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        (QuantScheme(4, 64, symmetric=False), "W4A16_ASYM_G64"),
        (QuantScheme(4, 64, True, activation=TOKEN), "W4A8_G64"),
        (QuantScheme(8, -1, True, activation=TOKEN), "W8A8_CHANNEL"),
        (QuantScheme(8, -1, True, activation=STATIC), "W8A8_STATIC_CHANNEL"),
        (QuantScheme(8, -1, True, "float"), "FP8A16_CHANNEL"),
        (NVFP4, "NVFP4A16"),
        (MXFP4, "MXFP4A16"),
        (QuantScheme(8, -1, True, "float", activation=FLOAT_TOKEN), "FP8_DYNAMIC_CHANNEL"),
        (QuantScheme(8, 128, True, "float", activation=FLOAT_GROUP), "FP8_DYNAMIC_B128"),
    ],
)
def test_a_scheme_has_a_name_and_survives_json(scheme: QuantScheme, name: str) -> None:
    assert scheme.name == name
    assert QuantScheme.from_dict(scheme.to_dict()) == scheme


@pytest.mark.parametrize(("granularity", "dynamic"), [("tensor", True), ("token", False), ("group", False)])
def test_scales_that_depend_on_the_batch_or_can_not_be_stored_are_refused(
    granularity: Any, dynamic: bool
) -> None:
    with pytest.raises(InputError, match=f"scales per {granularity}"):
        ActivationScheme("int", 8, granularity, dynamic=dynamic)


@pytest.mark.parametrize(("bits", "symmetric"), [(5, True), (8, False), (4, False)])
def test_float_weights_have_4_or_8_bits_and_no_zero_points(bits: int, symmetric: bool) -> None:
    with pytest.raises(InputError, match="float weights"):
        QuantScheme(bits, -1, symmetric, "float")


@pytest.mark.parametrize(
    ("group_size", "scale_dtype", "activation"),
    [
        (32, "float8_e4m3fn", None),
        (16, "float8_e8m0fnu", None),
        (16, "bfloat16", None),
        (16, "float8_e4m3fn", FLOAT_TOKEN),
    ],
)
def test_float4_weights_are_of_one_of_two_formats(
    group_size: int, scale_dtype: Any, activation: ActivationScheme | None
) -> None:
    with pytest.raises(InputError, match="float4 weights"):
        QuantScheme(4, group_size, True, "float", scale_dtype, activation)


def test_scales_of_8_bits_belong_to_float4_weights() -> None:
    with pytest.raises(InputError, match="scale dtype; found float8_e4m3fn"):
        QuantScheme(4, 16, True, scale_dtype="float8_e4m3fn")


def test_float4_codes_and_scales_are_counted() -> None:
    assert (NVFP4.bits_per_weight(64), MXFP4.bits_per_weight(64)) == (4.5, 4.25)


@pytest.mark.parametrize(("scheme", "unit"), [(NVFP4, None), (MXFP4, 1.0)])
def test_a_global_scale_belongs_to_nvfp4(scheme: QuantScheme, unit: float | None) -> None:
    scales = np.ones((2, 32 // scheme.group_size), np.float32)
    with pytest.raises(InputError, match="NVFP4 only"):
        QuantizedTensor(scheme, np.zeros((2, 32), np.uint8), scales, global_scale=unit)


def test_a_block_shares_its_scale_among_rows_and_columns() -> None:
    channel, block = QuantScheme(8, -1, True, "float"), QuantScheme(8, 128, True, "float")
    assert channel.bits_per_weight(256) == 8 + 16 / 256
    assert block.bits_per_weight(256) == 8 + 16 / 128 / 128


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_an_input_scale_is_positive_and_finite(scale: float) -> None:
    codes, scales = np.zeros((2, 8), np.uint8), np.ones((2, 1), np.float32)
    with pytest.raises(InputError, match="input scale"):
        QuantizedTensor(QuantScheme(8, -1, True, activation=STATIC), codes, scales, input_scale=scale)


@pytest.mark.parametrize(
    ("scheme", "scale"),
    [(QuantScheme(8, -1, True, activation=STATIC), None), (QuantScheme(8, -1, True, activation=TOKEN), 1.0)],
)
def test_an_input_scale_belongs_to_static_activations(scheme: QuantScheme, scale: float | None) -> None:
    codes, scales = np.zeros((2, 8), np.uint8), np.ones((2, 1), np.float32)
    with pytest.raises(InputError, match="static activations only"):
        QuantizedTensor(scheme, codes, scales, input_scale=scale)
