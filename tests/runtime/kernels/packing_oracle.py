"""Weights and activation panels in the kernels' layout, packed value by value as its README says."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "IntegerWeight",
    "Panels",
    "even_then_odd",
    "float_panels",
    "int8_panels",
    "pack_float_weight",
    "round_bfloat16",
]

TILE_ROWS = 32
ACTIVATION_GROUP = 32


def round_bfloat16(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The nearest bfloat16 of each value, ties to even, as float32."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def bfloat16_bits(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper half of each float32; exact for values that `round_bfloat16` has rounded."""
    return (x.view(np.uint32) >> 16).astype(np.uint16)


@dataclass(frozen=True)
class IntegerWeight:
    """Codes [rows, columns] with a scale and a zero point for each row and group of columns.

    Scales are [rows, groups], float16-exact for 4 bits; zero points are [rows, groups], or None where
    the zero point is the middle code.
    """

    bits: int
    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zeros: NDArray[np.int16] | None

    @property
    def group(self) -> int:
        """Columns that share a scale."""
        return int(self.codes.shape[1] // self.scales.shape[1])

    def values(self) -> NDArray[np.float64]:
        """What the codes stand for, [rows, columns]."""
        zeros = np.full(self.scales.shape, 1 << (self.bits - 1)) if self.zeros is None else self.zeros
        centred = self.codes.astype(np.float64) - np.repeat(zeros, self.group, axis=1)
        values: NDArray[np.float64] = centred * np.repeat(self.scales, self.group, axis=1)
        return values

    def bfloat16_values(self) -> NDArray[np.float32]:
        """What the codes stand for where weights are bfloat16: a float32 product, rounded.

        Rows of 8 bits with one scale are multiplied unscaled: nothing is rounded.
        """
        if self.bits == 8 and self.scales.shape[1] == 1:
            return self.values().astype(np.float32)
        zeros = np.full(self.scales.shape, 1 << (self.bits - 1)) if self.zeros is None else self.zeros
        centred = self.codes.astype(np.float32) - np.repeat(zeros, self.group, axis=1).astype(np.float32)
        return round_bfloat16(centred * np.repeat(self.scales, self.group, axis=1))

    @cached_property
    def packed(self) -> NDArray[np.uint8]:
        """The bytes of every tile; made once, for they take longer than what is tested with them."""
        rows, groups = self.scales.shape
        parts = []
        for first in range(0, rows, TILE_ROWS):
            tile = slice(first, first + TILE_ROWS)
            for group in range(groups):
                columns = slice(group * self.group, (group + 1) * self.group)
                pack = _pack_nibbles if self.bits == 4 else _pack_bytes
                parts.append(pack(self.codes[tile, columns]))
                scale_type = np.float16 if self.bits == 4 else np.float32
                parts.append(self.scales[tile, group].astype(scale_type).view(np.uint8))
                if self.zeros is not None:
                    parts.append(_interleave(self.zeros[tile, group]).view(np.uint8))
        return np.concatenate(parts)


def _pack_nibbles(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    lines = np.zeros((codes.shape[1] // 4, 64), np.uint8)
    for row, column in np.ndindex(codes.shape):
        shift = 0 if row < 16 else 4
        lines[column // 4, 4 * (row % 16) + column % 4] |= codes[row, column] << shift
    return lines.reshape(-1)


def _pack_bytes(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    lines = np.zeros((codes.shape[1] // 2, 64), np.uint8)
    for row, column in np.ndindex(codes.shape):
        lines[2 * (column // 4) + row // 16, 4 * (row % 16) + column % 4] = codes[row, column]
    return lines.reshape(-1)


def _interleave(zeros: NDArray[np.int16]) -> NDArray[np.int16]:
    line = np.zeros(TILE_ROWS, np.int16)
    for row in range(16):
        line[2 * row], line[2 * row + 1] = zeros[row], zeros[16 + row]
    return line


def pack_float_weight(weight: NDArray[np.float32], kind: str) -> NDArray[np.uint8]:
    """The bytes of every tile of a bfloat16 or float32 weight [rows, columns]."""
    rows, columns = weight.shape
    if kind == "float32":
        tiles = weight.reshape(rows // TILE_ROWS, TILE_ROWS, columns)
        return tiles.swapaxes(1, 2).copy().view(np.uint8).reshape(-1)
    bits = bfloat16_bits(weight)
    lines = np.zeros((rows // TILE_ROWS, columns, 32), np.uint16)
    for row, column in np.ndindex(weight.shape):
        tile, r = divmod(row, TILE_ROWS)
        lines[tile, 2 * (column // 2) + r // 16, 2 * (r % 16) + column % 2] = bits[row, column]
    return lines.view(np.uint8).reshape(-1)


@dataclass(frozen=True, slots=True)
class Panels:
    """A linear's input as bytes, with the widths of all panels but the last, and of the last."""

    values: NDArray[np.uint8]
    scales: NDArray[np.float32]
    sums: NDArray[np.int32]
    tokens: int
    panel: int
    last: int


def _split(tokens: int, panel: int) -> list[tuple[int, int]]:
    """First token and width of each panel; the last is the narrowest that holds what remains."""
    firsts = list(range(0, tokens, panel))
    last = next(width for width in (1, 2, 4, 8, 16) if width >= tokens - firsts[-1])
    return [(first, panel) for first in firsts[:-1]] + [(firsts[-1], last)]


def _padded(x: NDArray[np.generic], first: int, width: int) -> NDArray[np.generic]:
    panel = np.zeros((width, x.shape[1]), x.dtype)
    rows = x[first : first + width]
    panel[: len(rows)] = rows
    return panel


def int8_panels(values: NDArray[np.int8], scales: NDArray[np.float32], panel: int) -> Panels:
    """Panels of quantized activations [tokens, columns] with scales [tokens, columns / 32]."""
    tokens, columns = values.shape
    split = _split(tokens, panel)
    parts, scale_parts, sum_parts = [], [], []
    for first, width in split:
        rows = _padded(values, first, width)
        group_sums = rows.reshape(width, -1, ACTIVATION_GROUP).sum(axis=2, dtype=np.int32)
        if width < 16:
            rows = rows.reshape(width, columns // 4, 4).swapaxes(0, 1)
        parts.append(np.ascontiguousarray(rows).view(np.uint8).reshape(-1))
        scale_parts.append(_padded(scales, first, width).T.reshape(-1))
        sum_parts.append(group_sums.T.reshape(-1))
    return Panels(
        np.concatenate(parts),
        np.concatenate(scale_parts).astype(np.float32),
        np.concatenate(sum_parts),
        tokens,
        panel,
        split[-1][1],
    )


def float_panels(x: NDArray[np.float32], form: str, panel: int, *, tiles: bool = False) -> Panels:
    """Panels of float32 or (already rounded) bfloat16 activations [tokens, columns].

    With matrix `tiles`, the columns of each 64 of bfloat16, and of the 32 that may remain, are sorted into
    even and odd ones.
    """
    if form == "bfloat16" and tiles:
        x = x[:, even_then_odd(x.shape[1])]
    tokens, columns = x.shape
    split = _split(tokens, panel)
    numbers = bfloat16_bits(x) if form == "bfloat16" else x
    adjacent = 2 if form == "bfloat16" else 1
    parts = []
    for first, width in split:
        rows = _padded(numbers, first, width).reshape(width, columns // adjacent, adjacent)
        parts.append(np.ascontiguousarray(rows.swapaxes(0, 1)).view(np.uint8).reshape(-1))
    none = np.zeros(0)
    return Panels(
        np.concatenate(parts), none.astype(np.float32), none.astype(np.int32), tokens, panel, split[-1][1]
    )


def even_then_odd(columns: int) -> list[int]:
    """The columns in the order in which panels for matrix tiles hold them."""
    blocks = [range(start, min(start + 64, columns)) for start in range(0, columns, 64)]
    return [column for block in blocks for column in (*block[::2], *block[1::2])]
