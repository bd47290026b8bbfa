"""The compressed-tensors format `pack-quantized`: weights of 2 to 8 bits, one scale a group or row.

    {name}.weight_packed      int32 [N, ceil(K*bits/32)]   codes, packed along K
    {name}.weight_scale       [N, G] in the scheme's scale dtype
    {name}.weight_zero_point  int32 [ceil(N*bits/32), G]   asymmetric only; packed along N
    {name}.weight_shape       int64 [2] = (N, K)

The format speaks of signed values and packs them with 2^(bits-1) added: that is
our unsigned code. Widths other than 2, 4 and 8 are the dense bit stream that
compressed-tensors writes since June 2026. Weights of layers whose input is
quantized too, and float8 weights, are in the formats of `naive_quantized.py`,
float4 weights in those of `float4_packed.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from gristmill.runtime.errors import ModelError, UnsupportedError
from gristmill.runtime.formats.base import Load, load_pieces, num_groups, stored_scales
from gristmill.runtime.formats.compressed_tensors_args import format_name
from gristmill.runtime.formats.compressed_tensors_config import parse_config, quantization_config
from gristmill.runtime.formats.float4_packed import decode_float4, encode_float4, layout_float4
from gristmill.runtime.formats.naive_quantized import decode_bytes, encode_bytes, layout_bytes
from gristmill.runtime.packing import pack_rows, packed_words, unpack_rows
from gristmill.runtime.safetensors_writer import TensorSpec
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme, ScaleDtype
from gristmill.runtime.sources.base import Tensor

__all__ = [
    "SCALES_IN_MODEL_DTYPE",
    "decode",
    "encode",
    "layout",
    "parse_config",
    "quantization_config",
    "stored_scheme",
]

SCALES_IN_MODEL_DTYPE = True

_INT32 = np.dtype(np.int32)
_INT64 = np.dtype(np.int64)
_SCALE_DTYPES: Mapping[ScaleDtype, np.dtype[Any]] = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
}


def layout(name: str, scheme: QuantScheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
    """The tensors that a weight [N, K] is stored as."""
    if scheme.is_float4:
        return layout_float4(name, scheme, shape)
    if not _is_packed(scheme):
        return layout_bytes(name, scheme, shape, _SCALE_DTYPES[scheme.scale_dtype])
    rows, columns = shape
    groups = num_groups(name, scheme, columns)
    specs = {
        f"{name}.weight_packed": TensorSpec(_INT32, (rows, packed_words(columns, scheme.bits))),
        f"{name}.weight_scale": TensorSpec(_SCALE_DTYPES[scheme.scale_dtype], (rows, groups)),
        f"{name}.weight_shape": TensorSpec(_INT64, (2,)),
    }
    if not scheme.symmetric:
        specs[f"{name}.weight_zero_point"] = TensorSpec(_INT32, (packed_words(rows, scheme.bits), groups))
    return specs


def encode(name: str, tensor: QuantizedTensor) -> dict[str, Tensor]:
    """The stored tensors. Raises UnsupportedError for a group index, and for schemes that no format holds."""
    scheme = tensor.scheme
    if scheme.is_float4:
        return encode_float4(name, tensor)
    if not _is_packed(scheme):
        return encode_bytes(name, tensor, _SCALE_DTYPES[scheme.scale_dtype])
    _check_storable(name, tensor)
    tensors: dict[str, Tensor] = {
        f"{name}.weight_packed": pack_rows(tensor.codes, scheme.bits),
        f"{name}.weight_scale": stored_scales(name, tensor.scales, _SCALE_DTYPES[scheme.scale_dtype]),
        f"{name}.weight_shape": np.array(tensor.shape, np.int64),
    }
    if tensor.zero_points is not None:
        packed = pack_rows(tensor.zero_points.T, scheme.bits).T
        tensors[f"{name}.weight_zero_point"] = np.ascontiguousarray(packed)
    return tensors


def decode(name: str, load: Load, scheme: QuantScheme) -> QuantizedTensor:
    """Inverse of `encode`. Raises ModelError if the stored tensors do not fit together."""
    if scheme.is_float4:
        return decode_float4(name, load, scheme)
    if not _is_packed(scheme):
        return decode_bytes(name, load, scheme, _SCALE_DTYPES[scheme.scale_dtype])
    stored_shape = load(f"{name}.weight_shape")
    if stored_shape.shape != (2,):
        raise ModelError(f"tensor {name}.weight_shape", found=stored_shape.shape, expected="(2,)")
    rows, columns = (int(size) for size in stored_shape)
    packed, scales, _, *zero_points = load_pieces(load, layout(name, scheme, (rows, columns)))
    zeros = None
    if zero_points:
        zeros = unpack_rows(np.ascontiguousarray(zero_points[0].T), scheme.bits, rows)
        zeros = np.ascontiguousarray(zeros.T)
    codes = unpack_rows(packed, scheme.bits, columns)
    return QuantizedTensor(scheme, codes, scales.astype(np.float32), zeros)


def stored_scheme(name: str, scheme: QuantScheme, dtype_of: Callable[[str], np.dtype[Any]]) -> QuantScheme:
    """`scheme` with the scale dtype of the stored scales, which the configuration need not tell."""
    if scheme.is_float4:
        return scheme
    found = dtype_of(f"{name}.weight_scale")
    for scale_dtype, dtype in _SCALE_DTYPES.items():
        if dtype == found:
            return replace(scheme, scale_dtype=scale_dtype)
    raise UnsupportedError(f"type of {name}.weight_scale", found=found, expected=", ".join(_SCALE_DTYPES))


def _is_packed(scheme: QuantScheme) -> bool:
    return format_name(scheme) == "pack-quantized"


def _check_storable(name: str, tensor: QuantizedTensor) -> None:
    if tensor.group_index is not None:
        raise UnsupportedError(
            f"{name} in the format pack-quantized",
            found="columns assigned to groups by an index (activation order 'group')",
            expected="groups of neighbouring columns",
            hint="compressed-tensors no longer reads a group index; use static groups",
        )
