"""The compressed-tensors formats of float4 weights: `nvfp4-pack-quantized` and `mxfp4-pack-quantized`.

    {name}.weight_packed        uint8 [N, K/2]   codes of 4 bits, the even column in the low half
    {name}.weight_scale         float8_e4m3fn [N, K/16], or uint8 [N, K/32]: exponents plus 127
    {name}.weight_global_scale  float32 [1]; NVFP4 only

`W[n, k] = e2m1(code) * weight_scale / weight_global_scale`. Engines that fuse
linears (q, k and v) want one global scale for all of them.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from gristmill.runtime.errors import ModelError, UnsupportedError
from gristmill.runtime.formats.base import Load, load_pieces, num_groups, stored_scales
from gristmill.runtime.safetensors_writer import TensorSpec
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme
from gristmill.runtime.sources.base import Tensor

__all__ = ["decode_float4", "encode_float4", "layout_float4"]

_UINT8 = np.dtype(np.uint8)
_E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
_E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)


def layout_float4(name: str, scheme: QuantScheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
    """The tensors that a weight [N, K] is stored as."""
    rows, columns = shape
    groups = num_groups(name, scheme, columns)
    specs = {
        f"{name}.weight_packed": TensorSpec(_UINT8, (rows, columns // 2)),
        f"{name}.weight_scale": TensorSpec(_E4M3 if scheme.has_global_scale else _UINT8, (rows, groups)),
    }
    if scheme.has_global_scale:
        specs[f"{name}.weight_global_scale"] = TensorSpec(np.dtype(np.float32), (1,))
    return specs


def encode_float4(name: str, tensor: QuantizedTensor) -> dict[str, Tensor]:
    """The stored tensors. Raises UnsupportedError for a group index, and for scales that would change."""
    if tensor.group_index is not None:
        raise UnsupportedError(
            f"{name} in float4", found="columns assigned to groups by an index", expected="none"
        )
    packed = {f"{name}.weight_packed": tensor.codes[:, ::2] | tensor.codes[:, 1::2] << 4}
    if tensor.global_scale is None:
        scales = stored_scales(name, tensor.scales, _E8M0).view(np.uint8)
        return {**packed, f"{name}.weight_scale": scales}
    return {
        **packed,
        f"{name}.weight_scale": stored_scales(name, tensor.scales * np.float32(tensor.global_scale), _E4M3),
        f"{name}.weight_global_scale": np.array([tensor.global_scale], np.float32),
    }


def decode_float4(name: str, load: Load, scheme: QuantScheme) -> QuantizedTensor:
    """Inverse of `encode_float4`. Raises ModelError for tensors that do not fit together, and for NaN."""
    shape = load(f"{name}.weight_packed").shape
    if len(shape) != 2:
        raise ModelError(f"tensor {name}.weight_packed", found=f"shape {shape}", expected="[N, K/2]")
    rows, columns = shape[0], 2 * shape[1]
    packed, stored, *global_scales = load_pieces(load, layout_float4(name, scheme, (rows, columns)))
    codes = np.stack((packed & 0x0F, packed >> 4), axis=-1).reshape(rows, columns)
    scales = (stored if global_scales else stored.view(_E8M0)).astype(np.float32)
    if not np.isfinite(scales).all():
        raise ModelError(f"tensor {name}.weight_scale", found="NaN", expected="finite scales")
    if not global_scales:
        return QuantizedTensor(scheme, codes, scales)
    global_scale = global_scales[0][0]
    if not 0 < global_scale < np.inf:
        where = f"tensor {name}.weight_global_scale"
        raise ModelError(where, found=float(global_scale), expected="a positive finite number")
    return QuantizedTensor(scheme, codes, scales / global_scale, global_scale=float(global_scale))
