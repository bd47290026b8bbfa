"""Gated channels go straight into the next linear's panels: the bits of the slow way, in every width."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.runtime.kernels.packing_oracle import (
    IntegerWeight,
    Panels,
    even_then_odd,
    float_panels,
    round_bfloat16,
)

_native: Any = importlib.import_module("gristmill.runtime.kernels._native")

if "amx" not in _native.instruction_sets():
    pytest.skip("matrix tiles alone gate into panels", allow_module_level=True)

ISA = "amx"
KINDS = ("silu", "gelu", "gelu_tanh")
COLUMNS = 640  # more than are added in one go
TOKENS = 83  # the last panel is narrower than the others, and not full


@cache
def random_weight(bits: int, tiles: int) -> IntegerWeight:
    random = np.random.default_rng(bits + tiles)
    codes = random.integers(0, 1 << bits, (32 * tiles, COLUMNS), dtype=np.uint8)
    group = 32 if bits == 4 else COLUMNS
    scales = random.uniform(0.002, 0.02, (32 * tiles, COLUMNS // group)).astype(np.float16).astype(np.float32)
    return IntegerWeight(bits, codes, scales, None)


def gated_rows(
    weight: IntegerWeight, panels: Panels, kind: str, bias: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """The slow way: rows of sums, gated tile by tile."""
    rows, empty = len(weight.codes), (np.zeros(0, np.float32), np.zeros(0, np.int32))
    shape = (rows, COLUMNS, weight.group, False)
    out = _native.linear_panel(
        ISA,
        f"int{weight.bits}",
        weight.packed,
        *shape,
        "bfloat16",
        panels.values,
        *empty,
        panels.tokens,
        panels.panel,
        panels.last,
    )[: panels.tokens]
    tiles = [slice(first, first + 32) for first in range(0, rows, 32)]
    gated = [
        _native.gate_tile(ISA, kind, np.ascontiguousarray(out[:, t]), 16, None if bias is None else bias[t])
        for t in tiles
    ]
    return np.concatenate(gated, axis=1)


def panel_rows(raw: NDArray[np.uint8], panels: Panels, columns: int) -> NDArray[np.float32]:
    """Panels as [tokens, columns], by their documented layout."""
    values, parts, firsts = raw.view(ml_dtypes.bfloat16), [], range(0, panels.tokens, panels.panel)
    for first in firsts:
        width = panels.last if first == firsts[-1] else panels.panel
        part = values[first * columns : (first + width) * columns].reshape(columns // 2, width, 2)
        part = part.transpose(1, 0, 2).reshape(width, columns)
        parts.append(part[:, np.argsort(even_then_odd(columns))])
    return np.concatenate(parts)[: panels.tokens].astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("bits", "tiles"), [(4, 1), (4, 6), (8, 3)])
def test_gated_panels_are_gated_rows(bits: int, tiles: int, biased: bool, kind: str) -> None:
    weight, random = random_weight(bits, tiles), np.random.default_rng(tiles)
    x = round_bfloat16(random.standard_normal((TOKENS, COLUMNS)).astype(np.float32))
    bias = random.standard_normal(32 * tiles).astype(np.float32) if biased else None
    columns = (16 * tiles + 31) // 32 * 32
    for width in (1, 2, 4, 8, 16):
        panels = float_panels(x, "bfloat16", width, tiles=True)
        expected = np.zeros((TOKENS, columns), np.float32)
        gated = gated_rows(weight, panels, kind, bias)
        gated[np.abs(gated) < np.finfo(np.float32).tiny] = (
            0  # as the instruction that rounds takes subnormals
        )
        expected[:, : 16 * tiles] = round_bfloat16(gated)
        for panels_a_call in (1, 2, 6):
            raw = _native.gated_panels(
                ISA,
                f"int{bits}",
                weight.packed,
                32 * tiles,
                COLUMNS,
                weight.group,
                panels.values,
                TOKENS,
                width,
                panels.last,
                KINDS.index(kind),
                16 * tiles,
                bias,
                panels_a_call,
                min(tiles, 4),
            )
            np.testing.assert_array_equal(panel_rows(raw, panels, columns), expected, err_msg=f"{width}")
