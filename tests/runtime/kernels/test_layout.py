"""Packed weights lie where README.md says, and mean what was packed."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gristmill.runtime.errors import InputError
from gristmill.runtime.kernels.layout import (
    LAYOUT_VERSION,
    RowBlock,
    WeightForm,
    WeightKind,
    interleave,
    pack_weight,
    padded_columns,
    padded_rows,
    unpack_weight,
)

FORMS = [
    WeightForm("int4", 96, 32),
    WeightForm("int4", 128, 64, zero_points=True),
    WeightForm("int8", 96, 96),
    WeightForm("int8", 128, 64, zero_points=True),
    WeightForm("bfloat16", 64),
    WeightForm("float32", 64),
]


def random_block(form: WeightForm, rows: int, columns: int | None = None, seed: int = 0) -> RowBlock:
    random = np.random.default_rng(seed)
    shape = (rows, form.columns if columns is None else columns)
    if not form.is_integer:
        return RowBlock(random.standard_normal(shape).astype(form.dtype))
    top, groups = 2 * form.midpoint, (rows, form.groups)
    return RowBlock(
        random.integers(0, top, shape, np.uint8),
        random.uniform(-1, 1, groups).astype(np.float16).astype(np.float32),
        random.integers(0, top, groups, np.uint8) if form.zero_points else None,
    )


def meaning(form: WeightForm, block: RowBlock) -> NDArray[Any]:
    """The weight of a block, by its definition."""
    if block.scales is None:
        return block.values.astype(np.float32)
    groups = np.arange(block.values.shape[1]) // form.group
    zeros: Any = (
        form.midpoint if block.zero_points is None else block.zero_points[:, groups].astype(np.float32)
    )
    weight: NDArray[Any] = (block.values.astype(np.float32) - zeros) * block.scales[:, groups]
    return weight


def stored_weight(form: WeightForm, packed: NDArray[np.uint8], row: int, column: int) -> float:
    """One weight out of packed bytes, followed by hand through the description of layout version 1."""
    tile, inside = packed[row // 32].tobytes(), row % 32
    half, r = divmod(inside, 16)
    if form.kind == "float32":
        return float(np.frombuffer(tile, "<f4", 1, (2 * column + half) * 64 + 4 * r)[0])
    if form.kind == "bfloat16":
        j, c = divmod(column, 2)
        line = (2 * j + half) * 64
        return float(np.frombuffer(tile, ml_dtypes.bfloat16, 1, line + 2 * (2 * r + c))[0])
    group, k = divmod(column, form.group)
    j, c = divmod(k, 4)
    lines = form.group // 4 if form.kind == "int4" else form.group // 2
    scale_lines = 1 if form.kind == "int4" else 2
    start = group * 64 * (lines + scale_lines + form.zero_points)
    after_codes = start + 64 * lines
    if form.kind == "int4":
        byte = tile[start + 64 * j + 4 * r + c]
        code = byte >> 4 if half else byte & 15
        scale = float(np.frombuffer(tile, "<f2", 1, after_codes + 2 * inside)[0])
    else:
        code = tile[start + 64 * (2 * j + half) + 4 * r + c]
        scale = float(np.frombuffer(tile, "<f4", 1, after_codes + 4 * inside)[0])
    zero = 8 if form.kind == "int4" else 128
    if form.zero_points:
        zero = int(np.frombuffer(tile, "<i2", 1, after_codes + 64 * scale_lines + 2 * (2 * r + half))[0])
    return float(np.float32(code - zero) * np.float32(scale))


def name_of(form: WeightForm) -> str:
    return f"{form.kind} g{form.group}{' zero points' if form.zero_points else ''}"


@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_every_weight_lies_where_the_layout_says(form: WeightForm) -> None:
    block = random_block(form, 64)
    packed = pack_weight(form, block)
    found = [
        [stored_weight(form, packed, row, column) for column in range(form.columns)] for row in range(64)
    ]
    np.testing.assert_array_equal(np.array(found, np.float32), meaning(form, block))


@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_a_tile_is_a_whole_number_of_lines(form: WeightForm) -> None:
    assert form.tile_bytes % 64 == 0
    assert pack_weight(form, random_block(form, 33)).shape == (2, form.tile_bytes)


@settings(max_examples=60)
@given(
    kind=st.sampled_from(["int4", "int8", "bfloat16", "float32"]),
    rows=st.integers(1, 600),
    groups=st.integers(1, 3),
    group=st.sampled_from([32, 64, 96]),
    zero_points=st.booleans(),
    seed=st.integers(0, 99),
)
def test_unpacking_gives_back_what_was_packed(
    kind: WeightKind, rows: int, groups: int, group: int, zero_points: bool, seed: int
) -> None:
    integer = kind in ("int4", "int8")
    form = WeightForm(kind, groups * group, group if integer else 0, integer and zero_points)
    block = random_block(form, rows, seed=seed)
    weight = unpack_weight(form, pack_weight(form, block))
    assert weight.shape == (padded_rows(rows), form.columns)
    np.testing.assert_array_equal(weight[:rows], meaning(form, block))
    assert not weight[rows:].any()


@pytest.mark.parametrize("kind", ["int4", "int8", "bfloat16", "float32"])
@pytest.mark.parametrize("zero_points", [False, True])
def test_padding_columns_weigh_nothing(kind: WeightKind, zero_points: bool) -> None:
    integer = kind in ("int4", "int8")
    form = WeightForm(kind, 64, 64 if integer else 0, integer and zero_points)
    block = random_block(form, 40, columns=50)
    weight = unpack_weight(form, pack_weight(form, block))
    np.testing.assert_array_equal(weight[:40, :50], meaning(form, block))
    assert not weight[:, 50:].any()


@pytest.mark.parametrize("form", FORMS, ids=name_of)
@pytest.mark.parametrize("channels", [16, 20, 48])
def test_a_tile_of_interleaved_parts_holds_sixteen_rows_of_each(form: WeightForm, channels: int) -> None:
    gate, up = random_block(form, channels, seed=1), random_block(form, channels, seed=2)
    weight = unpack_weight(form, pack_weight(form, interleave(form, gate, up)))
    tiles = weight.reshape(-1, 2, 16, form.columns)
    assert len(tiles) == -(-channels // 16)
    for part, block in enumerate((gate, up)):
        rows = tiles[:, part].reshape(-1, form.columns)
        np.testing.assert_array_equal(rows[:channels], meaning(form, block))
        assert not rows[channels:].any()


def test_the_layout_has_the_version_that_the_readme_describes() -> None:
    assert LAYOUT_VERSION == 1
    assert [padded_rows(rows) for rows in (1, 32, 33)] == [32, 32, 64]
    assert [padded_columns(columns) for columns in (1, 32, 576)] == [32, 32, 576]


@pytest.mark.parametrize(
    ("kind", "columns", "group", "zero_points"),
    [
        ("int4", 50, 32, False),
        ("int4", 0, 32, False),
        ("int4", 64, 0, False),
        ("int4", 64, 16, False),
        ("int8", 96, 64, False),
        ("int8", 64, -64, True),
        ("bfloat16", 64, 32, False),
        ("float32", 64, 0, True),
    ],
)
def test_a_form_that_the_layout_lacks_is_refused(
    kind: WeightKind, columns: int, group: int, zero_points: bool
) -> None:
    with pytest.raises(InputError, match="weight"):
        WeightForm(kind, columns, group, zero_points)


def _changed(block: RowBlock, **changes: Any) -> RowBlock:
    fields = {"values": block.values, "scales": block.scales, "zero_points": block.zero_points}
    return RowBlock(**{**fields, **changes})


BLOCK = random_block(FORMS[1], 4)
assert BLOCK.scales is not None


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (_changed(BLOCK, values=BLOCK.values.astype(np.int32)), "int32"),
        (_changed(BLOCK, values=BLOCK.values[:, :64]), "padded to 128"),
        (_changed(BLOCK, values=BLOCK.values + np.uint8(9)), "at most 15"),
        (_changed(BLOCK, scales=None), "scales and zero points"),
        (_changed(BLOCK, zero_points=None), "scales and zero points"),
        (_changed(BLOCK, scales=BLOCK.scales[:, :1]), r"scales.*expected \(4, 2\)"),
        (_changed(BLOCK, scales=np.full((4, 2), 1e6, np.float32)), "float16"),
        (_changed(BLOCK, scales=np.full((4, 2), np.nan, np.float32)), "float16"),
    ],
)
def test_arrays_that_do_not_fit_their_form_are_refused(block: RowBlock, words: str) -> None:
    with pytest.raises(InputError, match=words):
        pack_weight(FORMS[1], block)


def test_bytes_of_another_size_are_not_unpacked() -> None:
    with pytest.raises(InputError, match="packed weight"):
        unpack_weight(FORMS[0], np.zeros((2, 64), np.uint8))
