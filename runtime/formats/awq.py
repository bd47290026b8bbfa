"""The AWQ format "GEMM": 4-bit weights, packed along the output features in an interleaved order.

    {name}.qweight  int32   [K, N/8]
    {name}.qzeros   int32   [G, N/8]
    {name}.scales   float16 [G, N]

`W[n, k] = (code - zero) * scale`. The configuration holds one group size for
all layers and no dtype. A symmetric weight stores zeros of 8 and is read back
as an asymmetric one that happens to have them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gristmill.runtime.errors import ModelError, UnsupportedError
from gristmill.runtime.formats.base import Load, load_pieces, num_groups, refuse_keys, stored_scales
from gristmill.runtime.packing import pack_awq_rows, unpack_awq_rows
from gristmill.runtime.safetensors_writer import TensorSpec
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme
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

SCALES_IN_MODEL_DTYPE = False

_INT32 = np.dtype(np.int32)
_FLOAT16 = np.dtype(np.float16)
_PACK = 8  # 4-bit codes in a word
_WHERE = "quantization_config of AWQ"
_HINTS = ("backend", "do_fuse", "exllama_config", "fuse_max_seq_len", "modules_to_fuse")
_KNOWN_KEYS = (
    "bits",
    "group_size",
    "lm_head",
    "modules_to_not_convert",
    "q_group_size",
    "quant_method",
    "version",
    "w_bit",
    "zero_point",
    *_HINTS,  # how transformers runs the weights, not what they mean
)


def layout(name: str, scheme: QuantScheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
    """The tensors that a weight [N, K] is stored as."""
    rows, columns = shape
    groups = num_groups(name, scheme, columns)
    return {
        f"{name}.qweight": TensorSpec(_INT32, (columns, rows // _PACK)),
        f"{name}.qzeros": TensorSpec(_INT32, (groups, rows // _PACK)),
        f"{name}.scales": TensorSpec(_FLOAT16, (groups, rows)),
    }


def encode(name: str, tensor: QuantizedTensor) -> dict[str, Tensor]:
    """The stored tensors. Raises UnsupportedError, naming the layer, for what the format can't hold."""
    _check_storable(name, tensor)
    zeros = tensor.zero_points
    if zeros is None:
        zeros = np.full(tensor.scales.shape, tensor.scheme.midpoint, np.uint8)
    return {
        f"{name}.qweight": pack_awq_rows(tensor.codes.T),
        f"{name}.qzeros": pack_awq_rows(zeros.T),
        f"{name}.scales": np.ascontiguousarray(stored_scales(name, tensor.scales, _FLOAT16).T),
    }


def decode(name: str, load: Load, scheme: QuantScheme) -> QuantizedTensor:
    """Inverse of `encode`. Raises ModelError if the stored tensors do not fit together."""
    packed_shape = load(f"{name}.qweight").shape
    if len(packed_shape) != 2:
        raise ModelError(f"tensor {name}.qweight", found=packed_shape, expected="[K, N/8]")
    columns, words = packed_shape
    packed, packed_zeros, scales = load_pieces(load, layout(name, scheme, (words * _PACK, columns)))
    zeros = np.ascontiguousarray(unpack_awq_rows(packed_zeros).T)
    return QuantizedTensor(
        scheme,
        np.ascontiguousarray(unpack_awq_rows(packed).T),
        np.ascontiguousarray(scales.T, dtype=np.float32),
        zeros,
    )


def quantization_config(schemes: Mapping[str, QuantScheme], skipped: Sequence[str]) -> dict[str, Any]:
    """The block of `config.json`. Raises UnsupportedError if the layers do not share one group size."""
    first_name, first = next(iter(schemes.items()))
    for name, scheme in schemes.items():
        if scheme.group_size != first.group_size:
            raise UnsupportedError(
                f"{name} in the format AWQ",
                found=f"group size {scheme.group_size}",
                expected=f"{first.group_size} as in {first_name}",
                hint="use compressed-tensors for mixed schemes",
            )
    for skip in skipped:
        # Readers match by substring: a name inside another would leave that one unquantized too.
        hit = next((name for name in schemes if skip in name), None)
        if hit is not None:
            raise UnsupportedError(
                f"{skip} can't be skipped in the format AWQ", found=f"{hit}, which holds the name"
            )
    return {
        "quant_method": "awq",
        "bits": first.bits,
        "group_size": first.group_size,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": list(skipped) or None,
    }


def parse_config(config: Mapping[str, Any], linear_names: Sequence[str]) -> dict[str, QuantScheme]:
    """The scheme of each linear that the block quantizes. Raises UnsupportedError naming what is not read.

    Understands AutoAWQ's own names (`w_bit`, `q_group_size`) too.
    """
    refuse_keys(_WHERE, config, _KNOWN_KEYS)
    version = str(config.get("version", "gemm"))
    if version.lower() != "gemm":
        raise UnsupportedError(f"{_WHERE}: version", found=version, expected="gemm")
    bits = _either(config, "bits", "w_bit")
    if bits != 4:
        raise UnsupportedError(f"{_WHERE}: bits", found=bits, expected=4)
    group_size = _either(config, "group_size", "q_group_size")
    if type(group_size) is not int or (group_size < 1 and group_size != -1):
        raise UnsupportedError(
            f"{_WHERE}: group_size", found=repr(group_size), expected="a positive number or -1"
        )
    if config.get("zero_point", True) is not True:
        raise UnsupportedError(f"{_WHERE}: zero_point", found=config["zero_point"], expected=True)
    scheme = QuantScheme(bits=4, group_size=group_size, symmetric=False, scale_dtype="float16")
    skipped = config.get("modules_to_not_convert") or []
    if not isinstance(skipped, list) or not all(isinstance(name, str) for name in skipped):
        raise UnsupportedError(f"{_WHERE}: modules_to_not_convert", found=skipped, expected="a list of names")
    if not config.get("lm_head"):
        skipped = [*skipped, "lm_head"]
    return {name: scheme for name in linear_names if not any(skip in name for skip in skipped)}


def stored_scheme(name: str, scheme: QuantScheme, dtype_of: Callable[[str], np.dtype[Any]]) -> QuantScheme:
    """`scheme` itself: the format fixes the type of scales."""
    return scheme


def _either(config: Mapping[str, Any], *names: str) -> Any:
    values = [config[name] for name in names if name in config]
    if len(values) != 1:
        raise UnsupportedError(f"{_WHERE}: {' or '.join(names)}", found=values, expected="one of them")
    return values[0]


def _check_storable(name: str, tensor: QuantizedTensor) -> None:
    scheme = tensor.scheme
    if scheme.type != "int" or scheme.bits != 4 or scheme.activation is not None:
        raise UnsupportedError(
            f"{name} in the format AWQ", found=scheme.name, expected="4-bit integer weights only"
        )
    if tensor.group_index is not None:
        raise UnsupportedError(
            f"{name} in the format AWQ",
            found="columns assigned to groups by an index",
            expected="groups of neighbouring columns",
        )
    if tensor.shape[0] % _PACK:
        raise UnsupportedError(
            f"{name} in the format AWQ",
            found=f"{tensor.shape[0]} output features",
            expected=f"a multiple of {_PACK}",
            hint="skip this layer or use compressed-tensors",
        )
