"""Attention and cache writes of every instruction set: against numpy, each other, and themselves."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

_native: Any = importlib.import_module("gristmill.runtime.kernels._native")

_ISAS: list[str] = _native.instruction_sets()
_FAST = [isa for isa in _ISAS if isa != "scalar"]
_KV_TYPES = ("float32", "bfloat16", "float16", "fp8", "int8", "int4")
_HEAD_DIMS = (16, 40, 64, 96, 128, 256)
_FLOATS: dict[str, Any] = {
    "float32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "fp8": ml_dtypes.float8_e4m3fn,
}
_UNIT = 16
_MOST_ROWS = 64  # of one pass
_KEY_SCALE, _VALUE_SCALE = 0.25, 1.5
# Of results near 1. Queries and weights of the vector kernels for int8 are whole numbers of 14 bits, and
# those of matrix tiles are bfloat16.
_INT8_TOLERANCE = 2e-4
_TILE_TOLERANCE = 3e-3
_EXACT_TOLERANCE = 2e-5
_STALE = 0xFF  # NaN in every float type

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Positions = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Cache:
    """Units of one sequence and kv head, in shuffled order; slots behind `tokens` hold NaN."""

    kv_type: str
    layout: Any
    units: NDArray[np.uint8]
    order: NDArray[np.int32]
    keys: Floats
    values: Floats


def _layout(kv_type: str, head_dim: int) -> Any:
    return _native.kv_layout(kv_type, head_dim, _KEY_SCALE, _VALUE_SCALE)


def _cache(isa: str, kv_type: str, head_dim: int, tokens: int, seed: int = 0) -> _Cache:
    rng = np.random.default_rng(seed)
    layout = _layout(kv_type, head_dim)
    count = -(-tokens // _UNIT)
    units = np.full((count, layout.unit_bytes), _STALE, np.uint8)
    order = rng.permutation(count).astype(np.int32)
    keys = rng.normal(size=(tokens, head_dim)).astype(np.float32)
    values = rng.normal(size=(tokens, head_dim)).astype(np.float32)
    for start in range(0, tokens, _UNIT):
        run = slice(start, start + _UNIT)
        _native.append(isa, layout, units, order[start // _UNIT], 0, keys[run], values[run])
    return _Cache(kv_type, layout, units, order, keys, values)


def _append_one(
    isa: str, layout: Any, units: NDArray[np.uint8], unit: int, slot: int, key: Floats, value: Floats
) -> None:
    _native.append(isa, layout, units, unit, slot, key[None], value[None])


def _decode_unit(kv_type: str, layout: Any, unit: NDArray[np.uint8]) -> tuple[Doubles, Doubles]:
    """Keys and values [16, padded head_dim] of a unit, by the documented layout."""
    dim = layout.padded_dim
    keys, values = unit[: layout.key_scales], unit[layout.values : layout.value_scales]
    if kv_type in _FLOATS:
        k = keys.view(_FLOATS[kv_type]).astype(np.float64)
        v = values.view(_FLOATS[kv_type]).astype(np.float64)
        scales = (_KEY_SCALE, _VALUE_SCALE) if kv_type == "fp8" else (1.0, 1.0)
        if kv_type == "bfloat16":
            k = k.reshape(dim // 2, _UNIT, 2).transpose(1, 0, 2)
            v = v.reshape(_UNIT // 2, dim, 2).transpose(0, 2, 1)
        else:
            k = k.reshape(dim, _UNIT).T
        if kv_type == "fp8":
            v = v.reshape(_UNIT // 2, dim // 16, 2, 16).transpose(0, 2, 1, 3)
        return k.reshape(_UNIT, dim) * scales[0], v.reshape(_UNIT, dim) * scales[1]
    key_scales = unit[layout.key_scales : layout.key_scales + 64].view(np.float32).astype(np.float64)
    value_scales = unit[layout.value_scales : layout.value_scales + 64].view(np.float32).astype(np.float64)
    if kv_type == "int8":
        k = keys.reshape(dim // 4, _UNIT, 4).transpose(1, 0, 2).reshape(_UNIT, dim).astype(np.float64) - 128
        v = values.view(np.int8).reshape(_UNIT // 4, dim, 4).transpose(0, 2, 1).reshape(_UNIT, dim)
    else:
        k = keys.view(np.int8).reshape(dim, _UNIT).T.astype(np.float64)
        pairs = values.reshape(_UNIT // 2, dim)
        v = np.stack([pairs & 15, pairs >> 4], axis=1).reshape(_UNIT, dim).astype(np.float64) - 8
    return k * key_scales[:, None], v * value_scales[:, None]


def _decode(cache: _Cache) -> tuple[Doubles, Doubles]:
    tokens, head_dim = cache.keys.shape
    with np.errstate(invalid="ignore"):
        units = [_decode_unit(cache.kv_type, cache.layout, cache.units[u]) for u in cache.order]
    keys = np.concatenate([k for k, _ in units])[:tokens, :head_dim]
    values = np.concatenate([v for _, v in units])[:tokens, :head_dim]
    return keys, values


def _expected(
    cache: _Cache, queries: Floats, positions: Positions, scale: float, window: int, softcap: float
) -> Doubles:
    keys, values = _decode(cache)
    out = np.empty(queries.shape)
    for row, position in enumerate(positions):
        first = max(0, position - window + 1) if window else 0
        scores = keys[first : position + 1] @ queries[row].astype(np.float64) * scale
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        weights = np.exp(scores - scores.max())
        out[row] = weights @ values[first : position + 1] / weights.sum()
    return out


def _tolerance(isa: str, kv_type: str) -> float:
    if isa == "amx" and kv_type == "bfloat16":
        return _TILE_TOLERANCE
    return _INT8_TOLERANCE if kv_type == "int8" else _EXACT_TOLERANCE


def _queries(rows: int, head_dim: int, seed: int = 1) -> Floats:
    return np.random.default_rng(seed).normal(size=(rows, head_dim)).astype(np.float32)


def _attend(isa: str, cache: _Cache, queries: Floats, positions: Positions, **how: float) -> Floats:
    scale = cache.layout.head_dim**-0.5
    found = _native.attend(isa, cache.layout, queries, positions, cache.units, cache.order, scale, **how)
    return np.asarray(found)


def _alone(isa: str, cache: _Cache, queries: Floats, positions: Positions, **how: float) -> Floats:
    """Each row's attention, in a pass for itself."""
    rows = range(len(positions))
    return np.stack([_attend(isa, cache, queries[r : r + 1], positions[r : r + 1], **how)[0] for r in rows])


def _last_positions(tokens: int, count: int, group: int) -> Positions:
    """The last `count` positions, each for `group` query heads."""
    return np.repeat(np.arange(tokens - count, tokens), group).astype(np.int32)


@pytest.mark.parametrize("head_dim", _HEAD_DIMS)
@pytest.mark.parametrize("kv_type", _KV_TYPES)
def test_scalar_attention_is_attention_over_the_decoded_units(kv_type: str, head_dim: int) -> None:
    cache = _cache("scalar", kv_type, head_dim, 273)
    positions = np.array([0, 15, 16, 200, 255, 256, 272], np.int32)
    queries = _queries(len(positions), head_dim)
    expected = _expected(cache, queries, positions, head_dim**-0.5, 0, 0.0)
    np.testing.assert_allclose(_attend("scalar", cache, queries, positions), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("how", [{"window": 40}, {"softcap": 2.0}, {"window": 257, "softcap": 30.0}])
@pytest.mark.parametrize("kv_type", ["float32", "bfloat16"])
@pytest.mark.parametrize("isa", _ISAS)
def test_window_and_soft_cap_are_those_of_numpy(isa: str, kv_type: str, how: dict[str, float]) -> None:
    cache = _cache(isa, kv_type, 64, 530)
    positions = np.array([0, 39, 40, 41, 254, 255, 256, 257, 300, 511, 512, 529], np.int32)
    queries = _queries(len(positions), 64)
    expected = _expected(
        cache, queries, positions, 0.125, int(how.get("window", 0)), float(how.get("softcap", 0.0))
    )
    tolerance = _tolerance(isa, kv_type)
    found = _attend(isa, cache, queries, positions, **how)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("head_dim", _HEAD_DIMS)
@pytest.mark.parametrize("kv_type", _KV_TYPES)
@pytest.mark.parametrize("isa", _FAST)
def test_instruction_sets_agree_with_the_scalar_one(isa: str, kv_type: str, head_dim: int) -> None:
    cache = _cache("scalar", kv_type, head_dim, 275)
    positions = _last_positions(275, 4, 3)
    queries = _queries(len(positions), head_dim)
    found = _attend(isa, cache, queries, positions)
    tolerance = _tolerance(isa, kv_type)
    expected = _attend("scalar", cache, queries, positions)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=False)


@pytest.mark.parametrize("kv_type", _KV_TYPES)
@pytest.mark.parametrize("isa", _FAST)
def test_append_writes_the_bytes_that_the_scalar_one_writes(isa: str, kv_type: str) -> None:
    for head_dim in (1, 16, 40, 45, 256):
        np.testing.assert_array_equal(
            _cache(isa, kv_type, head_dim, 21).units, _cache("scalar", kv_type, head_dim, 21).units
        )


@pytest.mark.parametrize("rows", [*range(1, 18), 31, 32, 33, 47, 48, 49, 63, 64])
@pytest.mark.parametrize("kv_type", ["bfloat16", "fp8", "int8"])
@pytest.mark.parametrize("isa", _ISAS)
def test_a_row_alone_gives_the_bits_that_it_gives_among_others(isa: str, kv_type: str, rows: int) -> None:
    cache = _cache(isa, kv_type, 112, 300)
    positions = np.arange(300 - rows, 300, dtype=np.int32)
    queries = _queries(rows, 112)
    together = _attend(isa, cache, queries, positions)
    np.testing.assert_array_equal(together, _alone(isa, cache, queries, positions))


@pytest.mark.parametrize("head_dim", [16, 32, 40, 48, 64, 80, 96, 112, 128, 144, 176, 192, 240, 256])
@pytest.mark.parametrize("kv_type", ["bfloat16", "int8"])
def test_every_number_of_rows_gives_a_row_the_bits_that_it_gives_alone(kv_type: str, head_dim: int) -> None:
    isa = _ISAS[-1]  # with the most ways to take rows together
    cache = _cache(isa, kv_type, head_dim, 40)
    queries = _queries(_MOST_ROWS, head_dim)
    positions = np.repeat(np.arange(24, 40, dtype=np.int32), _MOST_ROWS // 16)
    for how in ({}, {"window": 17}, {"softcap": 2.0}):
        alone = _alone(isa, cache, queries, positions, **how)
        for rows in range(2, _MOST_ROWS + 1):
            together = _attend(isa, cache, queries[:rows], positions[:rows], **how)
            np.testing.assert_array_equal(together, alone[:rows])


@pytest.mark.parametrize("kv_type", ["bfloat16", "int8"])
@pytest.mark.parametrize("isa", _FAST)
def test_prefill_in_any_chunks_gives_the_bits_of_decode_at_every_position(isa: str, kv_type: str) -> None:
    cache = _cache(isa, kv_type, 48, 290)
    queries = _queries(290, 48)
    positions = np.arange(290, dtype=np.int32)
    for how in ({}, {"window": 70, "softcap": 3.0}):
        alone = _alone(isa, cache, queries, positions, **how)
        for chunk in (3, 15, 16, 50, 64):
            chunks = [slice(start, start + chunk) for start in range(0, 290, chunk)]
            together = [_attend(isa, cache, queries[c], positions[c], **how) for c in chunks]
            np.testing.assert_array_equal(np.concatenate(together), alone)


@pytest.mark.parametrize("isa", _ISAS)
def test_a_scale_that_is_not_finite_reaches_only_rows_that_see_it(isa: str) -> None:
    for group in (1, 4):
        cache = _cache(isa, "int8", 64, 40)
        queries = _queries(12 * group, 64)
        positions = _last_positions(40, 12, group)
        before = _attend(isa, cache, queries, positions)
        broken = np.full(64, np.nan, np.float32)
        _append_one(isa, cache.layout, cache.units, cache.order[2], 1, cache.keys[33], broken)
        after = _attend(isa, cache, queries, positions)
        np.testing.assert_array_equal(after[: 5 * group], before[: 5 * group])
        assert np.isnan(after[5 * group :]).all()


@pytest.mark.parametrize("kv_type", _KV_TYPES)
@pytest.mark.parametrize("isa", _FAST)
def test_rows_far_apart_give_the_bits_that_they_give_alone(isa: str, kv_type: str) -> None:
    cache = _cache(isa, kv_type, 48, 550)
    positions = np.tile(np.array([3, 549, 16, 255, 256, 31, 300, 511], np.int32), 5)
    queries = _queries(len(positions), 48)
    for how in ({}, {"window": 19}):
        together = _attend(isa, cache, queries, positions, **how)
        np.testing.assert_array_equal(together, _alone(isa, cache, queries, positions, **how))


@pytest.mark.parametrize("kv_type", _KV_TYPES)
@pytest.mark.parametrize("isa", _ISAS)
def test_stale_bytes_behind_the_position_change_nothing(isa: str, kv_type: str) -> None:
    queries = _queries(6, 64)
    for tokens in (1, 18, 37):
        stale = _cache(isa, kv_type, 64, tokens)
        clean = _cache(isa, kv_type, 64, tokens)
        longer = _cache(isa, kv_type, 64, -(-tokens // _UNIT) * _UNIT, seed=5)
        clean.units[:] = longer.units[np.argsort(longer.order)][np.argsort(np.argsort(clean.order))]
        for t in range(tokens):
            unit = clean.order[t // _UNIT]
            _append_one(isa, clean.layout, clean.units, unit, t % _UNIT, clean.keys[t], clean.values[t])
        positions = np.full(6, tokens - 1, np.int32)
        found = _attend(isa, stale, queries, positions)
        assert np.isfinite(found).all()
        np.testing.assert_array_equal(found, _attend(isa, clean, queries, positions))


@pytest.mark.parametrize("kv_type", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("isa", _ISAS)
def test_an_infinite_value_reaches_only_rows_that_see_it(isa: str, kv_type: str) -> None:
    for group in (1, 9):
        cache = _cache(isa, kv_type, 64, 40)
        queries = _queries(6 * group, 64)
        positions = _last_positions(40, 6, group)
        before = _attend(isa, cache, queries, positions)
        infinite = np.full(64, np.inf, np.float32)
        _append_one(
            isa, cache.layout, cache.units, cache.order[37 // _UNIT], 37 % _UNIT, cache.keys[37], infinite
        )
        after = _attend(isa, cache, queries, positions)
        np.testing.assert_array_equal(after[: 3 * group], before[: 3 * group])
        assert not np.isfinite(after[3 * group :]).any()


@pytest.mark.parametrize("kv_type", ["float32", "bfloat16", "float16", "int8", "int4"])
@pytest.mark.parametrize("isa", _ISAS)
def test_a_key_that_is_not_a_number_makes_the_result_no_number(isa: str, kv_type: str) -> None:
    cache = _cache(isa, kv_type, 64, 20)
    broken = cache.keys[7].copy()
    broken[3] = np.nan
    _append_one(isa, cache.layout, cache.units, cache.order[0], 7, broken, cache.values[7])
    found = _attend(isa, cache, _queries(1, 64), np.array([19], np.int32))
    assert np.isnan(found).all()


@pytest.mark.parametrize("isa", _ISAS)
def test_fp8_holds_every_code_and_rounds_between_them_as_ml_dtypes_does(isa: str) -> None:
    codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    finite = np.unique(codes[np.isfinite(codes)])
    between = (finite[1:] + finite[:-1]) / 2
    inputs = np.concatenate([finite, between, np.nextafter(between, np.float32(9e9)), [449, 1e30, -np.inf]])
    layout = _native.kv_layout("fp8", 256)
    for start in range(0, len(inputs), 256):
        x = np.zeros(256, np.float32)
        x[: len(inputs[start : start + 256])] = inputs[start : start + 256]
        units = np.zeros((1, layout.unit_bytes), np.uint8)
        _append_one(isa, layout, units, 0, 3, x, x)
        expected = np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        pairs = units[0, layout.values :].reshape(_UNIT // 2, 256 // 16, 2, 16)
        np.testing.assert_array_equal(pairs[1, :, 1].ravel(), expected)


@pytest.mark.parametrize("isa", _ISAS)
def test_fp8_attention_reads_every_code_exactly(isa: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    exact = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    exact[np.isnan(exact)] = 0
    layout = _native.kv_layout("fp8", 256)
    units = np.zeros((1, layout.unit_bytes), np.uint8)
    _append_one(isa, layout, units, 0, 0, np.zeros(256, np.float32), exact)
    query = np.zeros((1, 256), np.float32)
    order, position = np.zeros(1, np.int32), np.zeros(1, np.int32)
    np.testing.assert_array_equal(_native.attend(isa, layout, query, position, units, order, 1.0)[0], exact)


_TINY = 2.0**-121  # where 127 / max|x| overflows, and codes may be smaller than they should
_NUMBERS = st.floats(-1e6, 1e6, width=32) | st.floats(-(2.0**-123), 2.0**-123, width=32)


@settings(max_examples=40)
@given(st.lists(_NUMBERS, min_size=16, max_size=16), st.sampled_from(["int8", "int4"]))
def test_int_caches_are_off_by_at_most_half_a_step(numbers: list[float], kv_type: str) -> None:
    x = np.array(numbers, np.float32)
    layout = _native.kv_layout(kv_type, 16)
    peak = float(np.abs(x).max())
    key_step, value_step = peak / 127, peak / (127 if kv_type == "int8" else 7)
    for isa in _ISAS:
        units = np.zeros((1, layout.unit_bytes), np.uint8)
        _append_one(isa, layout, units, 0, 5, x, -x)
        keys, values = _decode_unit(kv_type, layout, units[0])
        assert np.abs(keys[5] - x).max() <= key_step * 0.5001 + _TINY
        assert np.abs(values[5] + x).max() <= value_step * 0.5001 + _TINY


@pytest.mark.parametrize("kv_type", ["int8", "int4"])
@pytest.mark.parametrize("isa", _ISAS)
def test_a_zero_token_has_scale_zero(isa: str, kv_type: str) -> None:
    layout = _native.kv_layout(kv_type, 40)
    units = np.full((1, layout.unit_bytes), _STALE, np.uint8)
    nothing = np.zeros(40, np.float32)
    _append_one(isa, layout, units, 0, 9, nothing, nothing)
    keys, values = _decode_unit(kv_type, layout, units[0])
    assert not keys[9].any()
    assert not values[9].any()


@pytest.mark.parametrize("kv_type", _KV_TYPES)
def test_units_are_whole_cache_lines(kv_type: str) -> None:
    for head_dim in (1, 16, 40, 256):
        layout = _native.kv_layout(kv_type, head_dim)
        assert layout.unit_bytes % 64 == 0
        assert layout.values % 64 == 0


def test_wrong_arguments_are_named() -> None:
    cache = _cache("scalar", "float32", 16, 16)
    query = _queries(1, 16)
    with pytest.raises(ValueError, match="head dimension"):
        _native.kv_layout("int8", 257)
    with pytest.raises(ValueError, match="key and value cache"):
        _native.kv_layout("int3", 64)
    with pytest.raises(ValueError, match="positive"):
        _native.kv_layout("fp8", 64, 0.0, 1.0)
    with pytest.raises(ValueError, match="positions"):
        _attend("scalar", cache, query, np.array([16], np.int32))
    with pytest.raises(ValueError, match="queries"):
        _attend("scalar", cache, query[:, :8].copy(), np.array([3], np.int32))
    with pytest.raises(ValueError, match="slot"):
        _append_one("scalar", cache.layout, cache.units, 0, 16, query[0], query[0])
    with pytest.raises(ValueError, match="instruction set"):
        _attend("mmx", cache, query, np.array([3], np.int32))
