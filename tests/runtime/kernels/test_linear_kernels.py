"""Every instruction set multiplies as the plain loops do, and those as numpy does in float64."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gristmill.runtime.kernels import _native
from tests.runtime.kernels.packing_oracle import (
    IntegerWeight,
    Panels,
    float_panels,
    int8_panels,
    pack_float_weight,
    round_bfloat16,
)

SETS = _native.instruction_sets()
INT8_SETS = [isa for isa in SETS if "int8" in _native.linear_forms(isa)]
FLOAT_SETS = [isa for isa in SETS if "float32" in _native.linear_forms(isa)]
WIDTHS = {isa: (1, 2, 4, 8, 16) if isa in ("scalar", "amx") else (1, 2, 4, 8) for isa in SETS}
ROWS = 96
TOKENS = 19  # the last panel is narrower than the others, and not full

# bits, zero points, group, columns
INTEGER_CASES = [
    (bits, zeros, group, columns)
    for bits, zeros in product((4, 8), (False, True))
    for group, columns in ((32, 96), (64, 192), (96, 192), (128, 256), (160, 160))
]
integer_cases = pytest.mark.parametrize(("bits", "zeros", "group", "columns"), INTEGER_CASES)


@cache
def random_weight(bits: int, zeros: bool, group: int, columns: int) -> IntegerWeight:
    random = np.random.default_rng(bits * 1000 + group)
    shape = (ROWS, columns // group)
    scales = random.uniform(0.002, 0.02, shape).astype(np.float16).astype(np.float32)
    if bits == 8:
        scales *= np.float32(1.001)  # not a float16
    codes = random.integers(0, 1 << bits, (ROWS, columns), dtype=np.uint8)
    points = random.integers(0, 1 << bits, shape, dtype=np.int16) if zeros else None
    return IntegerWeight(bits, codes, scales, points)


def random_int8(columns: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    random = np.random.default_rng(columns)
    values = random.integers(-127, 128, (TOKENS, columns), dtype=np.int8)
    return values, random.uniform(0.001, 0.1, (TOKENS, columns // 32)).astype(np.float32)


def random_floats(rows: int, columns: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def multiply_integers(
    isa: str,
    weight: IntegerWeight,
    form: str,
    panels: Panels,
    panels_a_call: int = 1,
    tiles_a_call: int = 1,
) -> NDArray[np.float32]:
    rows, columns = weight.codes.shape
    return run(
        isa,
        f"int{weight.bits}",
        weight.packed,
        (rows, columns, weight.group, weight.zeros is not None),
        form,
        panels,
        panels_a_call,
        tiles_a_call,
    )


def run(
    isa: str,
    kind: str,
    packed: NDArray[np.uint8],
    shape: tuple[int, int, int, bool],
    form: str,
    panels: Panels,
    panels_a_call: int = 1,
    tiles_a_call: int = 1,
) -> NDArray[np.float32]:
    """A kernel's result without padding tokens, [tokens, rows]."""
    out: NDArray[np.float32] = _native.linear_panel(
        isa,
        kind,
        packed,
        *shape,
        form,
        panels.values,
        panels.scales,
        panels.sums,
        panels.tokens,
        panels.panel,
        panels.last,
        panels_a_call,
        tiles_a_call,
    )
    return out[: panels.tokens]


def assert_near(out: NDArray[np.float32], x: NDArray[np.floating], weight: NDArray[np.floating]) -> None:
    """`out` is x @ weight.T up to float32 rounding of the terms."""
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    size = np.abs(x) @ np.abs(weight).T
    assert np.all(np.abs(out - x @ weight.T) <= 4e-6 * size)


# ---------------------------------------------------------------- int8 activations


@integer_cases
def test_plain_int8_loops_match_float64(bits: int, zeros: bool, group: int, columns: int) -> None:
    weight = random_weight(bits, zeros, group, columns)
    values, scales = random_int8(columns)
    out = multiply_integers("scalar", weight, "int8", int8_panels(values, scales, 8))
    x = np.multiply(values, np.repeat(scales, 32, axis=1), dtype=np.float64)
    assert_near(out, x, weight.values())


@pytest.mark.parametrize("isa", INT8_SETS)
@integer_cases
def test_int8_results_are_the_same_bits_everywhere(
    isa: str, bits: int, zeros: bool, group: int, columns: int
) -> None:
    weight = random_weight(bits, zeros, group, columns)
    values, scales = random_int8(columns)
    expected = multiply_integers("scalar", weight, "int8", int8_panels(values, scales, 8))
    for width in WIDTHS[isa]:
        panels = int8_panels(values, scales, width)
        for panels_a_call in (1, 3):
            out = multiply_integers(isa, weight, "int8", panels, panels_a_call)
            np.testing.assert_array_equal(out, expected, err_msg=f"panels of {width}")


@pytest.mark.parametrize("isa", INT8_SETS)
@pytest.mark.parametrize(("bits", "zero"), [(4, None), (4, 0), (4, 15), (8, None), (8, 0), (8, 255)])
def test_extreme_codes_and_activations_do_not_saturate(isa: str, bits: int, zero: int | None) -> None:
    largest = (1 << bits) - 1
    codes = np.full((ROWS, 64), largest, np.uint8)
    codes[::3] = 0
    scales = np.ones((ROWS, 1), np.float32)
    zeros = None if zero is None else np.full((ROWS, 1), zero, np.int16)
    weight = IntegerWeight(bits, codes, scales, zeros)
    values = np.full((TOKENS, 64), 127, np.int8)
    values[::2] = -127
    values[5, ::2] = 127
    exact = values.astype(np.float64) @ weight.values().T  # whole numbers below 2^24
    for width in WIDTHS[isa]:
        panels = int8_panels(values, np.ones((TOKENS, 2), np.float32), width)
        out = multiply_integers(isa, weight, "int8", panels)
        np.testing.assert_array_equal(out, exact, err_msg=f"panels of {width}")


# ---------------------------------------------------------------- float activations


def activations(form: str, columns: int) -> NDArray[np.float32]:
    x = random_floats(TOKENS, columns, columns)
    return round_bfloat16(x) if form == "bfloat16" else x


def panels_of(isa: str, x: NDArray[np.float32], form: str, width: int) -> Panels:
    return float_panels(x, form, width, tiles=isa == "amx")


@pytest.mark.parametrize("form", ["bfloat16", "float32"])
@pytest.mark.parametrize("isa", FLOAT_SETS)
@integer_cases
def test_integer_weights_times_floats_match_float64(
    isa: str, form: str, bits: int, zeros: bool, group: int, columns: int
) -> None:
    weight = random_weight(bits, zeros, group, columns)
    x = activations(form, columns)
    width = WIDTHS[isa][-1]
    out = multiply_integers(isa, weight, form, panels_of(isa, x, form, width))
    on_tiles = (isa, form) == ("amx", "bfloat16")
    assert_near(out, x, weight.bfloat16_values() if on_tiles else weight.values())


@pytest.mark.parametrize("form", ["bfloat16", "float32"])
@pytest.mark.parametrize("isa", FLOAT_SETS)
@integer_cases
def test_integer_weights_times_floats_ignore_the_panel(
    isa: str, form: str, bits: int, zeros: bool, group: int, columns: int
) -> None:
    weight = random_weight(bits, zeros, group, columns)
    x = activations(form, columns)
    expected = multiply_integers(isa, weight, form, panels_of(isa, x, form, 1))
    for width, panels_a_call in product(WIDTHS[isa], (2, 5)):
        panels = panels_of(isa, x, form, width)
        out = multiply_integers(isa, weight, form, panels, panels_a_call, 2)
        np.testing.assert_array_equal(out, expected, err_msg=f"panels of {width}")


def float_weight(kind: str, columns: int) -> NDArray[np.float32]:
    weight = random_floats(ROWS, columns, columns + 1)
    return round_bfloat16(weight) if kind == "bfloat16" else weight


# The engine multiplies float32 weights with float32 only; tiles have no kernel for anything else.
FLOAT_CASES = [
    case
    for case in product(FLOAT_SETS, ("bfloat16", "float32"), ("bfloat16", "float32"))
    if case != ("amx", "bfloat16", "float32")
]


@pytest.mark.parametrize("columns", [32, 96, 160, 288])
@pytest.mark.parametrize(("isa", "form", "kind"), FLOAT_CASES)
def test_float_weights_match_float64_in_every_panel(isa: str, form: str, kind: str, columns: int) -> None:
    weight, x = float_weight(kind, columns), activations(form, columns)
    packed, shape = pack_float_weight(weight, kind), (ROWS, columns, 0, False)
    expected = run(isa, kind, packed, shape, form, panels_of(isa, x, form, 1))
    assert_near(expected, x, weight)
    for width in WIDTHS[isa]:
        for panels_a_call in (2, 5):
            out = run(isa, kind, packed, shape, form, panels_of(isa, x, form, width), panels_a_call, 3)
            np.testing.assert_array_equal(out, expected, err_msg=f"panels of {width}")


@pytest.mark.parametrize("bits", [4, 8])
def test_long_rows_on_matrix_tiles_are_decoded_in_parts(bits: int) -> None:
    columns = 4160  # of three tiles together, more than the scratch memory holds
    random = np.random.default_rng(bits)
    codes = random.integers(0, 1 << bits, (ROWS, columns), dtype=np.uint8)
    weight = IntegerWeight(bits, codes, np.full((ROWS, columns // 32), 2.0**-7, np.float32), None)
    x = activations("bfloat16", columns)
    for isa in {"scalar", SETS[-1]}:
        panels = panels_of(isa, x, "bfloat16", WIDTHS[isa][2])
        out = multiply_integers(isa, weight, "bfloat16", panels, 5, 3)
        assert_near(out, x, weight.values())
        single = multiply_integers(isa, weight, "bfloat16", panels_of(isa, x, "bfloat16", 1))
        np.testing.assert_array_equal(out, single)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("rows", {"rows": 48}),
        ("columns", {"columns": 48}),
        ("group", {"group": 48}),
        ("bytes of packed weights", {"packed": np.zeros(100, np.uint8)}),
        ("bytes of values", {"values": np.zeros(100, np.uint8)}),
        ("number of scales", {"scales": np.zeros(1, np.float32)}),
        ("number of sums", {"sums": np.zeros(1, np.int32)}),
        ("panel", {"panel": 3}),
        ("last", {"last": 1}),
        ("weight kind", {"kind": "int3"}),
        ("activation form", {"form": "float16"}),
        ("int8 activations", {"kind": "float32", "group": 0}),
        ("instruction set", {"isa": "mmx"}),
        ("panels_a_call", {"panels_a_call": 0}),
        ("tiles_a_call", {"tiles_a_call": 5}),
    ],
)
def test_arguments_that_do_not_fit_are_refused(what: str, change: dict[str, Any]) -> None:
    weight = random_weight(4, False, 32, 64)
    panels = int8_panels(*random_int8(64), 8)
    arguments: dict[str, Any] = {
        "isa": "scalar",
        "kind": "int4",
        "packed": weight.packed,
        "rows": ROWS,
        "columns": 64,
        "group": 32,
        "zero_points": False,
        "form": "int8",
        "values": panels.values,
        "scales": panels.scales,
        "sums": panels.sums,
        "tokens": panels.tokens,
        "panel": panels.panel,
        "last": panels.last,
    }
    with pytest.raises(ValueError, match=what):
        _native.linear_panel(**arguments | change)
