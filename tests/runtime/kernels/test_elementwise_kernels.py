"""Elementwise kernels and input panels of every instruction set: against numpy, and between widths."""

from __future__ import annotations

import importlib
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.runtime.kernels.packing_oracle import even_then_odd

_native: Any = importlib.import_module("gristmill.runtime.kernels._native")

_ISAS: list[str] = _native.instruction_sets()
_GROUP = 32
_WIDTHS = (1, 2, 4, 8, 16)
_FORMS: dict[str, tuple[Any, int]] = {  # and the columns of a token that stand beside each other
    "int8": (np.int8, 4),
    "bfloat16": (ml_dtypes.bfloat16, 2),
    "float32": (np.float32, 1),
}
_KINDS = ("silu", "gelu", "gelu_tanh")

Floats = NDArray[np.float32]


def _normal(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _panel_values(
    form: str, raw: NDArray[np.uint8], columns: int, width: int, isa: str = "scalar"
) -> NDArray[Any]:
    """A panel's values as [width, columns], by the documented layout."""
    dtype, beside = _FORMS[form]
    values: NDArray[Any] = raw.view(dtype)
    if form == "int8" and width == 16:
        return values.reshape(width, columns)
    values = values.reshape(columns // beside, width, beside).transpose(1, 0, 2).reshape(width, columns)
    if form == "bfloat16" and isa == "amx":
        return values[:, np.argsort(even_then_odd(columns))]
    return values


@pytest.mark.parametrize("width", _WIDTHS)
@pytest.mark.parametrize("isa", _ISAS)
def test_int8_panels_hold_rounded_groups_with_their_scales_and_sums(isa: str, width: int) -> None:
    x = _normal(max(1, width - 1), 576)
    x[0, 64:96] = 0
    raw, scales, sums = _native.fill_panel(isa, "int8", x, width)
    codes = _panel_values("int8", raw, 576, width).astype(np.int32)
    groups = np.zeros((width, 18, _GROUP), np.float32)
    groups[: len(x)] = x.reshape(len(x), 18, _GROUP)
    np.testing.assert_array_equal(scales.T, np.abs(groups).max(axis=2) / np.float32(127))
    np.testing.assert_array_equal(sums.T, codes.reshape(width, 18, _GROUP).sum(axis=2))
    error = codes.reshape(groups.shape) * scales.T[:, :, None].astype(np.float64) - groups
    assert (np.abs(error) <= scales.T[:, :, None] * 0.5001).all()


@pytest.mark.parametrize("form", tuple(_FORMS))
@pytest.mark.parametrize("isa", _ISAS)
def test_a_token_is_the_same_in_a_panel_of_any_width(isa: str, form: str) -> None:
    x = _normal(16, 96)
    alone = [_native.fill_panel(isa, form, x[t : t + 1], 1) for t in range(16)]
    for width in _WIDTHS[1:]:
        raw, scales, sums = _native.fill_panel(isa, form, x[:width], width)
        values = _panel_values(form, raw, 96, width, isa)
        for t in range(width):
            np.testing.assert_array_equal(values[t], _panel_values(form, alone[t][0], 96, 1, isa)[0])
            if form == "int8":
                np.testing.assert_array_equal(scales[:, t], alone[t][1][:, 0])
                np.testing.assert_array_equal(sums[:, t], alone[t][2][:, 0])


@pytest.mark.parametrize("width", _WIDTHS)
@pytest.mark.parametrize("form", ["bfloat16", "float32"])
@pytest.mark.parametrize("isa", _ISAS)
def test_float_panels_hold_the_nearest_numbers(isa: str, form: str, width: int) -> None:
    x = _normal(max(1, width // 2), 64)
    x[0, :3] = [np.inf, np.nan, 3.3961775e38]
    raw, scales, sums = _native.fill_panel(isa, form, x, width)
    expected = np.zeros((width, 64), np.float32)
    expected[: len(x)] = x.astype(ml_dtypes.bfloat16) if form == "bfloat16" else x
    values = _panel_values(form, raw, 64, width, isa).astype(np.float32)
    np.testing.assert_array_equal(values, expected)
    assert scales is None
    assert sums is None


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("isa", _ISAS)
def test_a_group_that_is_not_finite_has_a_scale_that_is_not(isa: str, broken: float) -> None:
    for column in (0, 17, 31):
        x = _normal(1, 64)
        x[0, column] = broken
        _, scales, _ = _native.fill_panel(isa, "int8", x, 1)
        assert np.isfinite(scales[:, 0]).tolist() == [False, True]


_TINY = 2.0**-121  # where 127 / max|x| overflows, and codes may be smaller than they should
_NUMBERS = st.floats(-1e6, 1e6, width=32) | st.floats(-(2.0**-123), 2.0**-123, width=32)


@settings(max_examples=40)
@given(st.lists(_NUMBERS, min_size=_GROUP, max_size=_GROUP))
def test_int8_activations_are_off_by_at_most_half_a_step(numbers: list[float]) -> None:
    x = np.array([numbers], np.float32)
    allowed = float(np.abs(x).max()) / 127 * 0.5001 + _TINY
    for isa in _ISAS:
        raw, scales, _ = _native.fill_panel(isa, "int8", x, 1)
        codes = raw.view(np.int8).astype(np.float64)
        assert np.abs(codes).max() <= 127
        assert np.abs(codes * float(scales[0, 0]) - x[0]).max() <= allowed


@pytest.mark.parametrize("n", [1, 15, 16, 63, 64, 576, 1001])
@pytest.mark.parametrize("isa", _ISAS)
def test_rms_norm_is_that_of_float64(isa: str, n: int) -> None:
    x, weight = _normal(n), _normal(n, seed=1)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean() + 1e-5) * weight
    np.testing.assert_allclose(_native.rms_norm(isa, x, weight, 1e-5), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("rotary_dim", [2, 16, 32, 40, 64, 80, 256])
@pytest.mark.parametrize("isa", _ISAS)
def test_rotate_turns_pairs_half_a_head_apart(isa: str, rotary_dim: int) -> None:
    head = _normal(rotary_dim + 3)
    angles = _normal(rotary_dim // 2, seed=1)
    cos, sin = np.cos(angles), np.sin(angles)
    half = rotary_dim // 2
    a, b = head[:half].astype(np.float64), head[half:rotary_dim].astype(np.float64)
    expected = np.concatenate([a * cos - b * sin, b * cos + a * sin, head[rotary_dim:]])
    np.testing.assert_allclose(_native.rotate(isa, head, cos, sin), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [1, 6, 8, 20, 24, 40, 48, 64, 80, 96, 128, 192, 256])
def test_hadamard_is_sylvesters_matrix_in_blocks_with_the_same_bits_everywhere(size: int) -> None:
    block = size & -size
    sylvester: NDArray[Any] = np.ones((1, 1))
    while len(sylvester) < block:
        sylvester = np.kron([[1, 1], [1, -1]], sylvester)
    head = _normal(size)
    expected = (head.reshape(-1, block).astype(np.float64) @ sylvester / block**0.5).ravel()
    scalar = _native.hadamard("scalar", head)
    np.testing.assert_allclose(scalar, expected, rtol=1e-5, atol=1e-6)
    for isa in _ISAS:
        np.testing.assert_array_equal(_native.hadamard(isa, head), scalar)


def _activate(kind: str, x: float) -> float:
    if kind == "silu":
        return x / (1 + math.exp(-x))
    if kind == "gelu":
        return 0.5 * x * math.erfc(-x / math.sqrt(2))
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("isa", _ISAS)
def test_gate_tile_multiplies_by_the_activation(isa: str, kind: str) -> None:
    a = np.linspace(-30, 30, 40 * 32, dtype=np.float32).reshape(40, 32)
    a[:, 16:] = 1
    active = np.array([[_activate(kind, float(x)) for x in row[:16]] for row in a])
    np.testing.assert_allclose(_native.gate_tile(isa, kind, a, 16), active, rtol=4e-5, atol=2e-7)


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("n", [0, 1, 9, 16])
@pytest.mark.parametrize("isa", _ISAS)
def test_gate_tile_adds_the_bias_before_the_activation(isa: str, kind: str, n: int) -> None:
    a, bias = _normal(3, 32), _normal(32, seed=1)
    wide = a.astype(np.float64) + bias
    expected = np.array([[_activate(kind, g) for g in row[:n]] for row in wide]).reshape(3, n)
    found = _native.gate_tile(isa, kind, a, n, bias)
    np.testing.assert_allclose(found, expected * wide[:, 16 : 16 + n], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("isa", _ISAS)
def test_activations_keep_what_is_not_a_number(isa: str) -> None:
    a = np.full((1, 32), np.nan, np.float32)
    for kind in _KINDS:
        assert np.isnan(_native.gate_tile(isa, kind, a, 16)).all()


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("n", [1, 15, 16, 17, 31, 32])
@pytest.mark.parametrize("isa", _ISAS)
def test_store_tile_writes_or_adds_the_first_columns(isa: str, n: int, add: bool, with_bias: bool) -> None:
    a, y = _normal(5, 32), _normal(5, n, seed=1)
    bias = _normal(n, seed=2) if with_bias else None
    tile = a[:, :n] + bias if bias is not None else a[:, :n]
    expected = y + tile if add else tile
    _native.store_tile(isa, a, y, add, bias)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("n", [1, 5, 16, 63, 64, 65, 129, 5000])
@pytest.mark.parametrize("isa", _ISAS)
def test_argmax_is_the_first_of_the_largest(isa: str, n: int) -> None:
    x = -np.abs(_normal(n))
    for place in {0, n // 2, n - 1}:
        y = x.copy()
        y[place] = 1
        assert _native.argmax(isa, y) == place
        y[place:] = 1
        assert _native.argmax(isa, y) == place
    assert _native.argmax(isa, x) == int(np.argmax(x))


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("isa", _ISAS)
def test_argmax_tells_of_a_value_that_is_not_finite(isa: str, broken: float) -> None:
    for place in (0, 40, 63, 64, 99):
        x = _normal(100)
        x[place] = broken
        assert _native.argmax(isa, x) == -1


@pytest.mark.parametrize("n", [1, 16, 37])
@pytest.mark.parametrize("isa", _ISAS)
def test_widen_gives_the_same_numbers_as_floats(isa: str, n: int) -> None:
    x = _normal(n)
    halves = x.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(_native.widen(isa, halves.view(np.uint16)), halves.astype(np.float32))
    np.testing.assert_array_equal(_native.widen(isa, x), x)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="multiple of 32"):
        _native.fill_panel("scalar", "int8", _normal(1, 40), 1)
    with pytest.raises(ValueError, match="width"):
        _native.fill_panel("scalar", "int8", _normal(3, 64), 2)
    with pytest.raises(ValueError, match="form"):
        _native.fill_panel("scalar", "int7", _normal(1, 64), 1)
    with pytest.raises(ValueError, match="weight"):
        _native.rms_norm("scalar", _normal(8), _normal(7), 1e-5)
    with pytest.raises(ValueError, match="activation function"):
        _native.gate_tile("scalar", "relu", _normal(1, 32), 16)
    with pytest.raises(ValueError, match="row"):
        _native.widen("scalar", np.zeros(4, np.int8))
