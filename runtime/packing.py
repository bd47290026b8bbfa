"""Packing integer codes into 32-bit words: a dense little-endian bit stream along the last axis.

Code i of a row occupies bits `i*bits .. (i+1)*bits - 1` of the row, counted
from the lowest bit of its first word; codes may straddle words. For 2, 4 and 8
bits this is the usual order: codes 0..7 of 4 bits make 0x76543210. A row of a
whole number of 32 codes fills its words exactly; else the last word ends in
zero bits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.errors import InputError

__all__ = ["pack_awq_rows", "pack_rows", "packed_words", "unpack_awq_rows", "unpack_rows"]

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # nibble i of an AWQ word holds column _AWQ_ORDER[i] of eight
_AWQ_INVERSE = (0, 4, 1, 5, 2, 6, 3, 7)


def packed_words(columns: int, bits: int) -> int:
    """Words that hold `columns` codes of `bits` bits."""
    return math.ceil(columns * bits / 32)


def pack_rows(codes: NDArray[np.uint8], bits: int) -> NDArray[np.int32]:
    """Pack codes uint8 [N, K] into int32 [N, ceil(K*bits/32)].

    Raises InputError for a code that does not fit.
    """
    _check_bits(bits)
    if codes.ndim != 2 or codes.dtype != np.uint8:
        raise InputError("codes to pack", found=f"{codes.dtype} {codes.shape}", expected="uint8 [N, K]")
    if codes.size and int(codes.max()) >> bits:
        raise InputError("codes to pack", found=int(codes.max()), expected=f"at most {(1 << bits) - 1}")
    rows, columns = codes.shape
    padded = np.ascontiguousarray(np.pad(codes, ((0, 0), (0, -columns % 32))))
    octets = _squeeze(padded.view("<u8"), bits)
    stream = np.ascontiguousarray(octets.view(np.uint8).reshape(*octets.shape, 8)[:, :, :bits])
    words = stream.reshape(rows, octets.shape[1] * bits).view("<i4")
    return np.ascontiguousarray(words[:, : packed_words(columns, bits)], dtype=np.int32)


def unpack_rows(packed: NDArray[np.int32], bits: int, columns: int) -> NDArray[np.uint8]:
    """Inverse of `pack_rows`: the first `columns` codes of each row, uint8 [N, columns]."""
    _check_bits(bits)
    expected = packed_words(columns, bits)
    if packed.ndim != 2 or packed.dtype != np.int32 or packed.shape[1] != expected:
        raise InputError(
            "packed codes", found=f"{packed.dtype} {packed.shape}", expected=f"int32 [N, {expected}]"
        )
    rows = packed.shape[0]
    padded = np.ascontiguousarray(np.pad(packed, ((0, 0), (0, -expected % bits))), dtype="<i4")
    octets = np.zeros((rows, padded.shape[1] * 4 // bits, 8), np.uint8)
    octets[:, :, :bits] = padded.view(np.uint8).reshape(*octets.shape[:2], bits)
    codes = _spread(octets.view("<u8")[:, :, 0], bits).view(np.uint8)
    return np.ascontiguousarray(codes[:, :columns])


def pack_awq_rows(codes: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Pack 4-bit codes uint8 [R, C] into int32 [R, C/8] in AWQ's interleaved order: 0..7 make 0x75316420.

    Raises InputError if C is not a multiple of 8.
    """
    return pack_rows(_reorder(codes, _AWQ_ORDER), 4)


def unpack_awq_rows(packed: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Inverse of `pack_awq_rows`: int32 [R, C/8] to uint8 [R, C]."""
    return _reorder(unpack_rows(packed, 4, packed.shape[-1] * 8), _AWQ_INVERSE)


def _reorder(codes: NDArray[np.uint8], order: tuple[int, ...]) -> NDArray[np.uint8]:
    if codes.ndim != 2 or codes.shape[1] % 8:
        raise InputError("codes in AWQ order", found=codes.shape, expected="[R, C] with C a multiple of 8")
    rows, columns = codes.shape
    return codes.reshape(rows, columns // 8, 8)[:, :, order].reshape(rows, columns)


def _squeeze(octets: NDArray[Any], bits: int) -> NDArray[Any]:
    """Move the eight `bits`-wide values in the bytes of each uint64 together, to its low end.

    Three steps join neighbours, as in a tree: bytes into 16-bit lanes, those
    into 32 bits, those into 64; each value lands on top of its left neighbour.
    """
    for lane, width in ((8, bits), (16, 2 * bits), (32, 4 * bits)):
        low = _lanes(lane, width)
        octets = (octets & low) | ((octets >> np.uint64(lane - width)) & (low << np.uint64(width)))
    return octets


def _spread(octets: NDArray[Any], bits: int) -> NDArray[Any]:
    """Inverse of `_squeeze`."""
    for lane, width in ((32, 4 * bits), (16, 2 * bits), (8, bits)):
        low = _lanes(lane, width)
        octets = (octets & low) | ((octets & (low << np.uint64(width))) << np.uint64(lane - width))
    return octets


def _lanes(lane: int, width: int) -> np.uint64:
    """A mask of the low `width` bits in every other lane of `lane` bits."""
    return np.uint64(sum(((1 << width) - 1) << start for start in range(0, 64, 2 * lane)))


def _check_bits(bits: int) -> None:
    if bits not in range(2, 9):
        raise InputError("packing width", found=f"{bits} bits", expected="2 to 8")
