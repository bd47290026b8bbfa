"""The kernels' weight layout, version 1: tiles of 32 output rows, each read front to back.

README.md of this folder says where each byte of a tile lies. A weight is packed
a few tiles at a time, so that little more than the result is ever in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.errors import InputError

__all__ = [
    "LAYOUT_VERSION",
    "TILE_ROWS",
    "RowBlock",
    "WeightForm",
    "WeightKind",
    "interleave",
    "pack_weight",
    "padded_columns",
    "padded_rows",
    "unpack_weight",
]

LAYOUT_VERSION = 1
TILE_ROWS = 32

WeightKind = Literal["int4", "int8", "bfloat16", "float32"]

_HALF = TILE_ROWS // 2
_COLUMN_STEP = 32  # input columns that share an activation scale
_LINE_BYTES = 64
_TILES_AT_ONCE = 8
_CODE_BITS = MappingProxyType({"int4": 4, "int8": 8})
_SCALE_TYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {"int4": np.dtype("<f2"), "int8": np.dtype("<f4")}
)
_ZERO_POINT_TYPE = np.dtype("<i2")
_FLOAT_TYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float32": np.dtype("<f4")}
)


@dataclass(frozen=True, slots=True)
class WeightForm:
    """How every row of a weight is held.

    `columns` is padded to a multiple of 32. `group` is the number of columns
    that share a scale, a multiple of 32 that divides `columns`; 0 for floats.
    Raises InputError for any other combination.
    """

    kind: WeightKind
    columns: int
    group: int = 0
    zero_points: bool = False

    def __post_init__(self) -> None:
        if self.columns < 1 or self.columns % _COLUMN_STEP:
            raise InputError("weight columns", found=self.columns, expected=f"a multiple of {_COLUMN_STEP}")
        if not self.is_integer:
            if self.group or self.zero_points:
                found = f"group {self.group}, zero points {self.zero_points}"
                raise InputError(f"{self.kind} weight", found=found, expected="neither")
        elif self.group < 1 or self.group % _COLUMN_STEP or self.columns % self.group:
            expected = f"a multiple of {_COLUMN_STEP} that divides {self.columns}"
            raise InputError(f"{self.kind} weight: group", found=self.group, expected=expected)

    @property
    def is_integer(self) -> bool:
        """Codes with scales, not floating point."""
        return self.kind in _CODE_BITS

    @property
    def midpoint(self) -> int:
        """The zero point of every group of a form without zero points."""
        return 1 << (_CODE_BITS[self.kind] - 1)

    @property
    def groups(self) -> int:
        """Scales of one row."""
        return self.columns // self.group if self.group else 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a value: uint8 codes, or the floating-point type itself."""
        return np.dtype(np.uint8) if self.is_integer else _FLOAT_TYPES[self.kind]

    @property
    def code_bytes(self) -> int:
        """Bytes of one group's codes in a tile."""
        return TILE_ROWS * self.group * _CODE_BITS[self.kind] // 8

    @property
    def scale_bytes(self) -> int:
        """Bytes of one group's scales in a tile."""
        return TILE_ROWS * _SCALE_TYPES[self.kind].itemsize

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile, a multiple of 64."""
        if not self.is_integer:
            return TILE_ROWS * self.columns * self.dtype.itemsize
        zero_points = _LINE_BYTES if self.zero_points else 0
        return self.groups * (self.code_bytes + self.scale_bytes + zero_points)


@dataclass(frozen=True, slots=True, eq=False)
class RowBlock:
    """Some rows of a weight: floats, or codes with the scales and zero points of a form.

    values       uint8 codes or floats [N, K], K up to the form's columns
    scales       float32 [N, G]; None for floats
    zero_points  uint8 [N, G]; None for forms without
    """

    values: NDArray[Any]
    scales: NDArray[np.float32] | None = None
    zero_points: NDArray[np.uint8] | None = None


def padded_rows(rows: int) -> int:
    """Rows of the whole tiles that hold `rows`."""
    return -(-rows // TILE_ROWS) * TILE_ROWS


def padded_columns(columns: int) -> int:
    """`columns` up to a multiple of 32."""
    return -(-columns // _COLUMN_STEP) * _COLUMN_STEP


def pack_weight(form: WeightForm, block: RowBlock) -> NDArray[np.uint8]:
    """The tiles of a weight, uint8 [tiles, tile_bytes]; padding rows and columns hold zero weights.

    Raises InputError for arrays that do not fit the form, codes that are too
    large and scales that the form's scale type does not hold exactly.
    """
    _check(form, block)
    rows = block.values.shape[0]
    packed = np.empty((padded_rows(rows) // TILE_ROWS, form.tile_bytes), np.uint8)
    pack = _pack_integers if form.is_integer else _pack_floats
    for tile in range(0, len(packed), _TILES_AT_ONCE):
        some = packed[tile : tile + _TILES_AT_ONCE]
        first = tile * TILE_ROWS
        pack(
            form, _pad(form, _slice(block, first, first + len(some) * TILE_ROWS), len(some) * TILE_ROWS), some
        )
    return packed


def unpack_weight(form: WeightForm, packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Inverse of `pack_weight`: what tiles uint8 [tiles, tile_bytes] mean, float32 [N, K], both padded."""
    if packed.dtype != np.uint8 or packed.ndim != 2 or packed.shape[1] != form.tile_bytes:
        expected = f"uint8 [tiles, {form.tile_bytes}]"
        raise InputError("packed weight", found=f"{packed.dtype} {packed.shape}", expected=expected)
    weight = np.empty((len(packed) * TILE_ROWS, form.columns), np.float32)
    unpack = _unpack_integers if form.is_integer else _unpack_floats
    for tile in range(0, len(packed), _TILES_AT_ONCE):
        some = np.ascontiguousarray(packed[tile : tile + _TILES_AT_ONCE])
        first = tile * TILE_ROWS
        weight[first : first + len(some) * TILE_ROWS] = unpack(form, some)
    return weight


def interleave(form: WeightForm, gate: RowBlock, up: RowBlock) -> RowBlock:
    """Rows of a gate and of an up projection as tiles of 16 gate rows, then the 16 up rows beside them."""
    rows = padded_rows(2 * gate.values.shape[0]) // 2
    halves = (_pad(form, gate, rows), _pad(form, up, rows))
    return RowBlock(
        _interleaved(halves[0].values, halves[1].values),
        _interleaved_or_none(halves[0].scales, halves[1].scales),
        _interleaved_or_none(halves[0].zero_points, halves[1].zero_points),
    )


def _interleaved(gate: NDArray[Any], up: NDArray[Any]) -> NDArray[Any]:
    columns = gate.shape[1]
    pairs = np.stack([part.reshape(-1, _HALF, columns) for part in (gate, up)], axis=1)
    return pairs.reshape(-1, columns)


def _interleaved_or_none(gate: NDArray[Any] | None, up: NDArray[Any] | None) -> NDArray[Any] | None:
    return None if gate is None or up is None else _interleaved(gate, up)


def _check(form: WeightForm, block: RowBlock) -> None:
    values, scales, zeros = block.values, block.scales, block.zero_points
    if values.ndim != 2 or values.dtype != form.dtype or padded_columns(values.shape[1]) != form.columns:
        expected = f"{form.dtype} [N, K], K padded to {form.columns}"
        raise InputError("weight to pack", found=f"{values.dtype} {values.shape}", expected=expected)
    if (scales is not None) != form.is_integer or (zeros is not None) != form.zero_points:
        raise InputError("weight to pack: scales and zero points", expected=f"those of {form}")
    for name, array in (("scales", scales), ("zero points", zeros)):
        if array is not None and array.shape != (len(values), form.groups):
            shape = (len(values), form.groups)
            raise InputError(f"weight to pack: {name}", found=array.shape, expected=shape)
    if scales is None:
        return
    limit = 2 * form.midpoint - 1
    if values.size and int(values.max()) > limit:
        raise InputError("codes to pack", found=int(values.max()), expected=f"at most {limit}")
    with np.errstate(over="ignore"):
        changed = scales.astype(_SCALE_TYPES[form.kind]).astype(np.float32) != scales
    if changed.any():
        raise InputError("scales to pack", found=scales[changed][0], expected="numbers that float16 holds")


def _slice(block: RowBlock, first: int, last: int) -> RowBlock:
    scales, zeros = block.scales, block.zero_points
    return RowBlock(
        block.values[first:last],
        None if scales is None else scales[first:last],
        None if zeros is None else zeros[first:last],
    )


def _pad(form: WeightForm, block: RowBlock, rows: int) -> RowBlock:
    """The block with `rows` rows and all columns; new entries are zero weights."""
    values, scales, zeros = block.values, block.scales, block.zero_points
    found, columns = values.shape
    if (found, columns) == (rows, form.columns):
        return block
    padded = np.zeros((rows, form.columns), form.dtype)
    if scales is not None and zeros is None:
        padded[:] = form.midpoint
    elif zeros is not None:
        padded[:found, columns:] = zeros[:, -1:]
    padded[:found, :columns] = values
    more = ((0, rows - found), (0, 0))
    return RowBlock(
        padded,
        None if scales is None else np.pad(scales, more),
        None if zeros is None else np.pad(zeros, more),
    )


def _pack_floats(form: WeightForm, block: RowBlock, packed: NDArray[np.uint8]) -> None:
    """A line for rows 0..15, then one for 16..31; entry `pair * r + c` is row r, column `pair * j + c`."""
    pair = 4 // form.dtype.itemsize
    lines = np.ascontiguousarray(block.values).reshape(len(packed), 2, _HALF, form.columns // pair, pair)
    packed[:] = np.ascontiguousarray(lines.transpose(0, 3, 1, 2, 4)).reshape(len(packed), -1).view(np.uint8)


def _unpack_floats(form: WeightForm, packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    pair = 4 // form.dtype.itemsize
    lines = packed.view(form.dtype).reshape(len(packed), form.columns // pair, 2, _HALF, pair)
    return lines.transpose(0, 2, 3, 1, 4).reshape(-1, form.columns).astype(np.float32)


def _pack_integers(form: WeightForm, block: RowBlock, packed: NDArray[np.uint8]) -> None:
    tiles = len(packed)
    codes = np.ascontiguousarray(block.values).reshape(tiles, 2, _HALF, form.columns)
    if form.kind == "int4":
        codes = (codes[:, :1] | (codes[:, 1:] << np.uint8(4))).astype(np.uint8, copy=False)
    quads = codes.view("<u4").transpose(0, 3, 1, 2)  # [tile, K / 4, half, row]: four columns in a word
    groups = packed.reshape(tiles, form.groups, -1)
    after_codes, after_scales = form.code_bytes, form.code_bytes + form.scale_bytes
    groups[..., :after_codes] = np.ascontiguousarray(quads).view(np.uint8).reshape(tiles, form.groups, -1)
    assert block.scales is not None  # `_check`
    scales = block.scales.reshape(tiles, TILE_ROWS, form.groups).transpose(0, 2, 1)
    groups[..., after_codes:after_scales] = scales.astype(_SCALE_TYPES[form.kind], order="C").view(np.uint8)
    if block.zero_points is not None:
        zeros = block.zero_points.reshape(tiles, 2, _HALF, form.groups).transpose(0, 3, 2, 1)
        entries = zeros.astype(_ZERO_POINT_TYPE, order="C").reshape(tiles, form.groups, TILE_ROWS)
        groups[..., after_scales:] = entries.view(np.uint8)


def _unpack_integers(form: WeightForm, packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    tiles = len(packed)
    groups = packed.reshape(tiles, form.groups, -1)
    after_codes, after_scales = form.code_bytes, form.code_bytes + form.scale_bytes
    halves = 1 if form.kind == "int4" else 2
    codes = np.ascontiguousarray(groups[..., :after_codes])
    codes = codes.reshape(tiles, form.groups, form.group // 4, halves, _HALF, 4).transpose(0, 3, 4, 1, 2, 5)
    if form.kind == "int4":
        codes = np.concatenate([codes & np.uint8(15), codes >> np.uint8(4)], axis=1)
    values = codes.reshape(tiles, TILE_ROWS, form.groups, form.group).astype(np.float32)
    scales = np.ascontiguousarray(groups[..., after_codes:after_scales]).view(_SCALE_TYPES[form.kind])
    zeros: Any = np.float32(form.midpoint)
    if form.zero_points:
        entries = np.ascontiguousarray(groups[..., after_scales:]).view(_ZERO_POINT_TYPE)
        zeros = entries.reshape(tiles, form.groups, _HALF, 2).transpose(0, 3, 2, 1)
        zeros = zeros.reshape(tiles, TILE_ROWS, form.groups, 1).astype(np.float32)
    weight = (values - zeros) * scales.transpose(0, 2, 1)[..., None].astype(np.float32)
    return np.asarray(weight.reshape(-1, form.columns), dtype=np.float32)
