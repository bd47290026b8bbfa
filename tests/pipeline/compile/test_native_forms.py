"""Which form the kernels get a weight in, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from gristmill.pipeline.compile.native_forms import common_form, linear_part, quantized_part
from gristmill.runtime.errors import ModelError, UnsupportedError
from gristmill.runtime.kernels.layout import WeightForm
from gristmill.runtime.scheme import ActivationScheme, QuantizedTensor, QuantScheme
from tests.tiny_checkpoints import round_to_nearest

Quantized = Callable[..., QuantizedTensor]
GROUPS_OF_32 = QuantScheme(4, 32, symmetric=True)


@pytest.mark.parametrize(
    ("scheme", "form"),
    [
        (QuantScheme(2, 64, symmetric=True), WeightForm("int4", 192, 64)),
        (QuantScheme(4, 96, symmetric=False), WeightForm("int4", 192, 96, zero_points=True)),
        (QuantScheme(4, 192, symmetric=True), WeightForm("int4", 192, 192)),
        (QuantScheme(6, -1, symmetric=True), WeightForm("int8", 192, 192)),
        (QuantScheme(8, 32, symmetric=False), WeightForm("int8", 192, 32, zero_points=True)),
        (QuantScheme(4, 32, symmetric=True, scale_dtype="float32"), WeightForm("int8", 192, 32)),
        (QuantScheme(4, 48, symmetric=True), WeightForm("bfloat16", 192)),
        (QuantScheme(8, 16, symmetric=True), WeightForm("bfloat16", 192)),
    ],
    ids=lambda value: value.name if isinstance(value, QuantScheme) else value.kind,
)
def test_each_scheme_has_its_form(scheme: QuantScheme, form: WeightForm, quantized: Quantized) -> None:
    assert linear_part("x", quantized(scheme, 8, 192), "bfloat16").form == form


def test_bfloat16_scales_outside_the_range_of_float16_make_int8(quantized: Quantized) -> None:
    tensor = quantized(GROUPS_OF_32, 8, 64)
    tensor.scales[3, 1] = 2.0**17
    assert linear_part("x", tensor, "bfloat16").form.kind == "int8"
    tensor.scales[3, 1] = 2.0**-30
    assert linear_part("x", tensor, "bfloat16").form.kind == "int8"


def test_columns_in_activation_order_are_dequantized(quantized: Quantized) -> None:
    tensor = quantized(GROUPS_OF_32, 8, 64)
    index = np.random.default_rng(0).permutation(np.arange(64) // 32).astype(np.int32)
    shuffled = replace(tensor, group_index=index)
    part = linear_part("x", shuffled, "float16")
    assert part.form == WeightForm("float32", 64)
    np.testing.assert_array_equal(part.rows(part.form, 2, 7).values, shuffled.dequantize()[2:7])


def test_an_index_of_neighbouring_groups_changes_nothing(quantized: Quantized) -> None:
    tensor = quantized(GROUPS_OF_32, 8, 64)
    indexed = replace(tensor, group_index=(np.arange(64) // 32).astype(np.int32))
    assert linear_part("x", indexed, "bfloat16").form == WeightForm("int4", 64, 32)


@pytest.mark.parametrize(
    "scheme",
    [
        QuantScheme(8, -1, True, "float"),
        QuantScheme(4, 16, True, "float", "float8_e4m3fn"),
        QuantScheme(4, 32, True, "float", "float8_e8m0fnu"),
    ],
    ids=lambda scheme: scheme.name,
)
def test_float_codes_are_dequantized(scheme: QuantScheme) -> None:
    weight = round_to_nearest(np.random.default_rng(0).standard_normal((8, 64)), scheme)
    part = linear_part("x", weight, "bfloat16")
    assert part.form.kind == "bfloat16"
    expected = weight.dequantize().astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(part.rows(part.form, 2, 8).values, expected[2:])


def test_beside_a_dequantized_part_all_are_dequantized(quantized: Quantized) -> None:
    parts = [
        linear_part("a", quantized(GROUPS_OF_32, 8, 96), "bfloat16"),
        linear_part("b", quantized(QuantScheme(4, 48, symmetric=True), 8, 96), "bfloat16"),
    ]
    assert common_form(parts) == WeightForm("bfloat16", 96)
    plain = linear_part("c", np.ones((8, 96), np.float32), "bfloat16")
    assert common_form([*parts, plain]) == WeightForm("float32", 96)


def test_groups_of_different_sizes_meet_in_their_common_divisor(quantized: Quantized) -> None:
    schemes = [QuantScheme(4, size, symmetric=True) for size in (64, 96)]
    parts = [linear_part("x", quantized(scheme, 8, 192), "bfloat16") for scheme in schemes]
    assert common_form(parts) == WeightForm("int4", 192, 32)


@pytest.mark.parametrize(("kind", "bits"), [("int", 8), ("float", 8)])
def test_a_scheme_that_quantizes_the_input_is_refused_by_name(
    kind: str, bits: int, quantized: Quantized
) -> None:
    activation = ActivationScheme("int" if kind == "int" else "float", bits, "token", dynamic=True)
    scheme = QuantScheme(8, -1, symmetric=True, activation=activation)
    with pytest.raises(UnsupportedError, match=r"layers\.0\.q has scheme W8A8_CHANNEL.*weight-only"):
        linear_part("layers.0.q", quantized(scheme, 8, 64), "bfloat16")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(value: float, quantized: Quantized) -> None:
    tensor = quantized(GROUPS_OF_32, 8, 64)
    tensor.scales[0, 0] = value
    with pytest.raises(ModelError, match="scales of q"):
        linear_part("q", tensor, "bfloat16")
    weight = np.ones((8, 64), np.float32)
    weight[5, 5] = value
    part = quantized_part("lm_head.weight", weight)
    with pytest.raises(ModelError, match=r"lm_head\.weight"):
        part.rows(part.form, 0, 8)


def test_rows_of_zeros_and_of_the_smallest_numbers_are_quantized() -> None:
    weight = np.zeros((2, 32), np.float32)
    weight[1] = np.float32(1e-45)
    part = quantized_part("head", weight)
    block = part.rows(part.form, 0, 2)
    assert block.scales is not None
    assert np.isfinite(block.scales).all()
    assert (block.values[0] == 128).all()
