"""The compressed-tensors formats that store a weight in a byte: `int-`, `float-` and `naive-quantized`.

    {name}.weight        int8 or float8_e4m3fn [N, K]
    {name}.weight_scale  [N, G], for blocks [ceil(N/size), K/size], in the scheme's scale dtype
    {name}.input_scale   [1] in the scale dtype; static activations only

`W[n, k] = weight[n, k] * scale`. int8 holds our unsigned code less its midpoint,
also where that takes 4 bits (W4A8): these formats do not pack. Blocks of the last
rows may be cut off. Engines quantize the layer's input as `quantization_config` says.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.errors import ModelError, UnsupportedError
from gristmill.runtime.formats.base import Load, load_pieces, num_groups, stored_scales
from gristmill.runtime.formats.compressed_tensors_args import format_name
from gristmill.runtime.safetensors_writer import TensorSpec
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme
from gristmill.runtime.sources.base import Tensor

__all__ = ["decode_bytes", "encode_bytes", "layout_bytes"]

_INT8 = np.dtype(np.int8)
_FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
_NAN = np.uint8(0x7F)
"""The only float8 (E4M3) that is not a number, but for its sign."""


def layout_bytes(
    name: str, scheme: QuantScheme, shape: tuple[int, int], scale_dtype: np.dtype[Any]
) -> dict[str, TensorSpec]:
    """The tensors that a weight [N, K] is stored as."""
    rows, columns = shape
    scales = (-(-rows // scheme.group_rows), num_groups(name, scheme, columns))
    specs = {
        f"{name}.weight": TensorSpec(_FLOAT8 if scheme.type == "float" else _INT8, shape),
        f"{name}.weight_scale": TensorSpec(scale_dtype, scales),
    }
    if scheme.is_static:
        specs[f"{name}.input_scale"] = TensorSpec(scale_dtype, (1,))
    return specs


def encode_bytes(name: str, tensor: QuantizedTensor, scale_dtype: np.dtype[Any]) -> dict[str, Tensor]:
    """The stored tensors. Raises UnsupportedError for what engines do not read in these formats."""
    scheme = tensor.scheme
    _check_storable(name, tensor)
    is_float, midpoint = scheme.type == "float", np.uint8(scheme.midpoint)
    weight = tensor.codes.view(_FLOAT8) if is_float else (tensor.codes - midpoint).view(_INT8)
    scales = np.ascontiguousarray(tensor.scales[:: scheme.group_rows])
    tensors: dict[str, Tensor] = {
        f"{name}.weight": weight,
        f"{name}.weight_scale": stored_scales(name, scales, scale_dtype),
    }
    if tensor.input_scale is not None:
        scale = np.array([tensor.input_scale], np.float32)
        tensors[f"{name}.input_scale"] = stored_scales(f"the input of {name}", scale, scale_dtype)
    return tensors


def decode_bytes(name: str, load: Load, scheme: QuantScheme, scale_dtype: np.dtype[Any]) -> QuantizedTensor:
    """Inverse of `encode_bytes`. Raises ModelError for tensors that do not fit together, and for NaN."""
    shape = load(f"{name}.weight").shape
    if len(shape) != 2:
        raise ModelError(f"tensor {name}.weight", found=f"shape {shape}", expected="[N, K]")
    layout = layout_bytes(name, scheme, (shape[0], shape[1]), scale_dtype)
    weight, scales, *inputs = load_pieces(load, layout)
    codes: NDArray[np.uint8] = weight.view(np.uint8)
    if scheme.type == "int":
        codes = codes + np.uint8(scheme.midpoint)
        if (most := codes.max(initial=0)) > scheme.max_code:
            expected = f"signed integers of {scheme.bits} bits"
            raise ModelError(f"tensor {name}.weight", found=int(most) - scheme.midpoint, expected=expected)
    elif ((codes & _NAN) == _NAN).any():
        raise ModelError(f"tensor {name}.weight", found="NaN", expected="finite weights")
    spread = np.repeat(scales.astype(np.float32), scheme.group_rows, axis=0)[: shape[0]]
    input_scale = _input_scale(name, inputs[0]) if inputs else None
    return QuantizedTensor(scheme, codes, spread, input_scale=input_scale)


def _input_scale(name: str, stored: NDArray[Any]) -> float:
    scale = float(stored[0])
    if not 0 < scale < np.inf:
        raise ModelError(f"tensor {name}.input_scale", found=scale, expected="a positive finite number")
    return scale


def _check_storable(name: str, tensor: QuantizedTensor) -> None:
    scheme = tensor.scheme
    where = f"{name} in the format {format_name(scheme)}"
    activation = scheme.activation
    if activation is not None and (activation.type, activation.bits) != (scheme.type, 8):
        expected = "inputs of 8 bits and of the weights' type"
        raise UnsupportedError(where, found=scheme.name, expected=expected)
    fits = scheme.bits == 4 or (scheme.bits == 8 and scheme.group_size == -1)
    if scheme.type == "int" and not (fits and scheme.symmetric):
        expected = "4 bits, or 8 with one scale a row, no zero points"
        raise UnsupportedError(where, found=scheme.name, expected=expected)
    in_blocks = scheme.type == "float" and scheme.group_size != -1
    if activation is not None and (activation.granularity == "group") != in_blocks:
        expected = "inputs in groups for weights in blocks, else per token or tensor"
        raise UnsupportedError(
            where, found=f"{scheme.name}, inputs per {activation.granularity}", expected=expected
        )
    if tensor.group_index is not None:
        raise UnsupportedError(where, found="columns assigned to groups by an index", expected="none")
