"""Packing is an inverse pair in the order that other readers expect."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gristmill.runtime.errors import InputError
from gristmill.runtime.packing import pack_awq_rows, pack_rows, packed_words, unpack_awq_rows, unpack_rows

WIDTHS = range(2, 9)


def random_codes(rows: int, columns: int, bits: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 1 << bits, (rows, columns), dtype=np.uint8)


def pack_slowly(codes: NDArray[np.uint8], bits: int) -> NDArray[np.int32]:
    """One big integer a row: code i is shifted to bit i*bits."""
    rows = []
    for row in codes.tolist():
        stream = sum(code << (bits * i) for i, code in enumerate(row))
        data = stream.to_bytes(4 * packed_words(len(row), bits), "little")
        rows.append(np.frombuffer(data, "<i4"))
    return np.array(rows, np.int32).reshape(codes.shape[0], packed_words(codes.shape[1], bits))


def pack_awq_slowly(codes: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Column j of eight goes to nibble (0, 4, 1, 5, 2, 6, 3, 7)[j]."""
    words = np.zeros((codes.shape[0], codes.shape[1] // 8), np.uint32)
    for row, column in np.ndindex(codes.shape):
        nibble = (0, 4, 1, 5, 2, 6, 3, 7)[column % 8]
        words[row, column // 8] |= np.uint32(int(codes[row, column]) << (4 * nibble))
    return words.view(np.int32)


def test_golden_word_of_4_bits() -> None:
    packed = pack_rows(np.arange(8, dtype=np.uint8)[None], 4)
    assert packed.view(np.uint32).tolist() == [[0x76543210]]


def test_golden_word_of_symmetric_zeros() -> None:
    packed = pack_rows(np.full((1, 8), 8, np.uint8), 4)
    assert packed.view(np.uint32).tolist() == [[0x88888888]]


def test_golden_word_of_awq() -> None:
    packed = pack_awq_rows(np.arange(8, dtype=np.uint8)[None])
    assert packed.view(np.uint32).tolist() == [[0x75316420]]


def test_3_bit_codes_straddle_words() -> None:
    codes = np.zeros((1, 32), np.uint8)
    codes[0, 10] = codes[0, 21] = 7
    packed = pack_rows(codes, 3).view(np.uint32)
    assert packed.tolist() == [[0b11 << 30, 1 | 1 << 31, 0b11]]


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("shape", [(128, 33), (3, 1), (1, 31), (2, 32), (5, 100), (0, 8), (4, 0)])
def test_every_width_and_odd_shape_matches_the_slow_twin(bits: int, shape: tuple[int, int]) -> None:
    codes = random_codes(*shape, bits)
    packed = pack_rows(codes, bits)
    np.testing.assert_array_equal(packed, pack_slowly(codes, bits))
    np.testing.assert_array_equal(unpack_rows(packed, bits, shape[1]), codes)


@settings(max_examples=60)
@given(st.integers(1, 9), st.integers(1, 150), st.sampled_from(WIDTHS), st.integers(0, 1000))
def test_unpacking_undoes_packing(rows: int, columns: int, bits: int, seed: int) -> None:
    codes = random_codes(rows, columns, bits, seed)
    assert (unpack_rows(pack_rows(codes, bits), bits, columns) == codes).all()


@pytest.mark.parametrize("bits", WIDTHS)
def test_compressed_tensors_unpacks_and_packs_the_same(bits: int) -> None:
    codes = random_codes(128, 33, bits)
    signed = torch.from_numpy(codes.astype(np.int16) - (1 << (bits - 1))).to(torch.int8)
    packed = torch.from_numpy(pack_rows(codes, bits))
    assert torch.equal(unpack_from_int32(packed, bits, torch.Size((128, 33))), signed)
    assert torch.equal(pack_to_int32(signed, bits), packed)


def test_awq_order_matches_the_slow_twin() -> None:
    codes = random_codes(7, 40, 4)
    packed = pack_awq_rows(codes)
    np.testing.assert_array_equal(packed, pack_awq_slowly(codes))
    np.testing.assert_array_equal(unpack_awq_rows(packed), codes)


def test_a_transposed_view_packs_like_its_copy() -> None:
    codes = random_codes(64, 48, 4)
    np.testing.assert_array_equal(pack_rows(codes.T, 4), pack_rows(codes.T.copy(), 4))


def test_bits_after_the_last_code_are_ignored() -> None:
    packed = pack_rows(np.array([[1, 2, 3]], np.uint8), 4)
    assert unpack_rows(packed | np.int32(-1 << 12), 4, 3).tolist() == [[1, 2, 3]]


def test_code_beyond_the_width_is_refused() -> None:
    with pytest.raises(InputError, match="found 16; expected at most 15"):
        pack_rows(np.full((1, 8), 16, np.uint8), 4)


def test_signed_codes_are_refused() -> None:
    with pytest.raises(InputError, match=r"expected uint8 \[N, K\]"):
        pack_rows(np.zeros((1, 8), np.int8), 4)


@pytest.mark.parametrize("bits", [0, 1, 9])
def test_width_out_of_range_is_refused(bits: int) -> None:
    with pytest.raises(InputError, match="packing width; found"):
        pack_rows(np.zeros((1, 8), np.uint8), bits)


def test_wrong_number_of_words_is_refused() -> None:
    with pytest.raises(InputError, match=r"expected int32 \[N, 2\]"):
        unpack_rows(np.zeros((1, 1), np.int32), 4, 9)


def test_awq_order_needs_whole_words() -> None:
    with pytest.raises(InputError, match="C a multiple of 8"):
        pack_awq_rows(np.zeros((2, 9), np.uint8))
