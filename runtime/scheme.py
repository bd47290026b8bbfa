"""Quantization schemes and quantized tensors: the words all layers share.

numpy only, so that the native engine needs no torch. A weight `W` is always
`[N, K]` = `[out_features, in_features]`; groups run along `K`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.errors import InputError

__all__ = ["FLOAT8_MAX", "ActivationScheme", "QuantScheme", "QuantizedTensor", "fitting_group_sizes"]

FLOAT8_MAX = 448.0
"""The largest number of float8 (E4M3): what lies beyond it, after division by the scale, is cut to it."""

ScaleDtype = Literal["bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e8m0fnu"]
_SCALE_BITS = {"bfloat16": 16, "float16": 16, "float32": 32, "float8_e4m3fn": 8, "float8_e8m0fnu": 8}
_FLOAT4_NAMES = {(16, "float8_e4m3fn"): "NVFP4A16", (32, "float8_e8m0fnu"): "MXFP4A16"}
"""Group size and type of scales of each format of float4 weights."""
_COMMON_GROUPS = (16, 32, 64, 96, 128, 192, 256, 512, 1024)


@dataclass(frozen=True, slots=True)
class ActivationScheme:
    """How a layer's input is quantized: an executor honours it or refuses it by name.

    `granularity` says what shares a scale: the whole tensor, one token's
    features, or (`group`) as many of them as share a scale in the weight.
    Dynamic scales are computed from the values, static ones are stored.
    """

    type: Literal["int", "float"]
    bits: int
    granularity: Literal["tensor", "token", "group"]
    dynamic: bool
    symmetric: bool = True

    def __post_init__(self) -> None:
        if self.dynamic == (self.granularity == "tensor"):
            raise InputError(
                "activation scheme",
                found=f"{'dynamic' if self.dynamic else 'static'} scales per {self.granularity}",
                expected="dynamic scales per token or group, or a static one per tensor",
            )


@dataclass(frozen=True, slots=True)
class QuantScheme:
    """How one weight is stored.

    `group_size` is the number of input columns that share a scale; -1 is one
    scale per output row. With `type` float and 8 bits, weights are float8 (E4M3)
    and a group also spans `group_size` rows: a square block. With 4 bits they are
    float4 (E2M1) in groups of 16 with float8 scales (NVFP4), or of 32 with powers
    of two (E8M0, MXFP4). `scale_dtype` is the storage type of scales. `activation`
    is None for weight-only schemes.
    """

    bits: int
    group_size: int
    symmetric: bool
    type: Literal["int", "float"] = "int"
    scale_dtype: ScaleDtype = "bfloat16"
    activation: ActivationScheme | None = None

    def __post_init__(self) -> None:
        if self.type == "int" and self.bits not in range(2, 9):
            raise InputError("quantization width", found=f"{self.bits} bits", expected="2 to 8")
        if self.type == "float" and (self.bits not in (4, 8) or not self.symmetric):
            found = f"{self.bits} bits{'' if self.symmetric else ' with zero points'}"
            raise InputError("float weights", found=found, expected="4 or 8 bits without zero points")
        if self.group_size != -1 and self.group_size < 1:
            raise InputError(
                "group size", found=self.group_size, expected="a positive number, or -1 for one group a row"
            )
        if self.scale_dtype not in _SCALE_BITS:
            raise InputError("scale dtype", found=self.scale_dtype, expected=", ".join(_SCALE_BITS))
        is_known = (self.group_size, self.scale_dtype) in _FLOAT4_NAMES and self.activation is None
        if self.is_float4 and not is_known:
            raise InputError(
                "float4 weights",
                found=f"groups of {self.group_size} with {self.scale_dtype} scales",
                expected="16 with float8_e4m3fn or 32 with float8_e8m0fnu, inputs as they are",
            )
        if not self.is_float4 and _SCALE_BITS[self.scale_dtype] == 8:
            raise InputError("scale dtype", found=self.scale_dtype, expected="float4 weights beside it")

    @property
    def max_code(self) -> int:
        """The largest unsigned code, 2^bits - 1."""
        return (1 << self.bits) - 1

    @property
    def midpoint(self) -> int:
        """The zero point of a symmetric scheme, 2^(bits-1)."""
        return 1 << (self.bits - 1)

    @property
    def name(self) -> str:
        """The scheme in one word, such as `W4A16_ASYM_G64` or `FP8_DYNAMIC_CHANNEL`."""
        activation = self.activation
        inputs = "A16" if activation is None else f"A{activation.bits}"
        timing = "" if activation is None else "_DYNAMIC" if activation.dynamic else "_STATIC"
        if self.is_float4:
            return _FLOAT4_NAMES[self.group_size, self.scale_dtype]
        if self.type == "float":
            block = "_CHANNEL" if self.group_size == -1 else f"_B{self.group_size}"
            return f"FP8{timing or inputs}{block}"
        group = "_CHANNEL" if self.group_size == -1 else f"_G{self.group_size}"
        symmetry = "" if self.symmetric else "_ASYM"
        return f"W{self.bits}{inputs}{timing if self.is_static else ''}{symmetry}{group}"

    def num_groups(self, in_features: int) -> int:
        """Groups along K; raises InputError, naming the sizes that fit, if K does not divide."""
        if self.group_size == -1:
            return 1
        if in_features % self.group_size:
            raise InputError(
                f"group size {self.group_size} does not divide {in_features} input features",
                expected="one of " + ", ".join(map(str, fitting_group_sizes(in_features))),
            )
        return in_features // self.group_size

    @property
    def is_static(self) -> bool:
        """Whether a scale of the layer's input is stored beside the weight."""
        return self.activation is not None and not self.activation.dynamic

    @property
    def is_float4(self) -> bool:
        """Whether weights are float4 (E2M1)."""
        return self.type == "float" and self.bits == 4

    @property
    def has_global_scale(self) -> bool:
        """Whether scales are stored in units of one number for the whole weight."""
        return self.is_float4 and self.scale_dtype == "float8_e4m3fn"

    @property
    def group_rows(self) -> int:
        """Output rows that share a scale."""
        is_block = self.type == "float" and self.bits == 8 and self.group_size != -1
        return self.group_size if is_block else 1

    def bits_per_weight(self, in_features: int) -> float:
        """Stored bits a weight: code, scale and (asymmetric) zero point.

        Where inputs are quantized too, a code takes a whole byte: engines pack it as they load it.
        """
        code = self.bits if self.activation is None else 8
        overhead = _SCALE_BITS[self.scale_dtype] + (0 if self.symmetric else self.bits)
        return code + overhead * self.num_groups(in_features) / in_features / self.group_rows

    def to_dict(self) -> dict[str, Any]:
        """The JSON form used in manifests and engine plans."""
        activation = self.activation
        return {
            "bits": self.bits,
            "group_size": self.group_size,
            "symmetric": self.symmetric,
            "type": self.type,
            "scale_dtype": self.scale_dtype,
            "activation": None
            if activation is None
            else {name: getattr(activation, name) for name in activation.__dataclass_fields__},
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> QuantScheme:
        """Inverse of `to_dict`; an unknown key raises InputError."""
        known = set(cls.__dataclass_fields__)
        if unknown := sorted(set(data) - known):
            raise InputError("quantization scheme", found=f"unknown keys {unknown}", expected=sorted(known))
        activation = data.get("activation")
        fields = {**data, "activation": ActivationScheme(**activation) if activation else None}
        return cls(**fields)


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedTensor:
    """A weight as 8-bit codes with scales and zero points.

    `W[n, k] = (codes[n, k] - zero_points[n, g]) * scales[n, g]`, `g = group_index[k]`;
    for float schemes `W[n, k] = float(codes[n, k]) * scales[n, g]`, E4M3 or E2M1.

    codes        uint8   [N, K], 0 .. 2^bits - 1, or the bits of a float8 or float4
    scales       float32 [N, G], each exactly representable in `scheme.scale_dtype`;
                 rows that share a scale repeat it
    zero_points  uint8   [N, G], or None for a symmetric scheme (then 2^(bits-1))
    group_index  int32   [K], or None where group g holds columns g*size .. (g+1)*size - 1
    input_scale  of a scheme with static activations, exact in `scheme.scale_dtype`
    global_scale  of NVFP4: it times `scales` is what `scheme.scale_dtype` holds
    """

    scheme: QuantScheme
    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zero_points: NDArray[np.uint8] | None = None
    group_index: NDArray[np.int32] | None = field(default=None)
    input_scale: float | None = None
    global_scale: float | None = None

    def __post_init__(self) -> None:
        rows, columns = self.codes.shape
        groups = self.scheme.num_groups(columns)
        if self.scales.shape != (rows, groups):
            raise InputError("quantized tensor: scales", found=self.scales.shape, expected=(rows, groups))
        if self.scheme.symmetric != (self.zero_points is None):
            raise InputError("quantized tensor: zero points are given for asymmetric schemes only")
        if self.zero_points is not None and self.zero_points.shape != (rows, groups):
            raise InputError(
                "quantized tensor: zero points", found=self.zero_points.shape, expected=(rows, groups)
            )
        if self.group_index is not None and self.group_index.shape != (columns,):
            raise InputError(
                "quantized tensor: group index", found=self.group_index.shape, expected=(columns,)
            )
        if self.scheme.is_static != (self.input_scale is not None):
            raise InputError("quantized tensor: an input scale is given for static activations only")
        if self.scheme.has_global_scale != (self.global_scale is not None):
            raise InputError("quantized tensor: a global scale is given for NVFP4 only")
        if self.input_scale is not None and not 0 < self.input_scale < math.inf:
            raise InputError(
                "quantized tensor: input scale", found=self.input_scale, expected="positive and finite"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """`(N, K)`."""
        rows, columns = self.codes.shape
        return rows, columns

    @property
    def column_groups(self) -> NDArray[np.int32]:
        """The group of each column, int32 [K]."""
        if self.group_index is not None:
            return self.group_index
        columns = self.codes.shape[1]
        size = columns if self.scheme.group_size == -1 else self.scheme.group_size
        return (np.arange(columns) // size).astype(np.int32)

    def dequantize(self) -> NDArray[np.float32]:
        """The weight that the codes mean, float32 [N, K]."""
        groups = self.column_groups
        if self.scheme.type == "float":
            kind = ml_dtypes.float4_e2m1fn if self.scheme.bits == 4 else ml_dtypes.float8_e4m3fn
            values = self.codes.view(kind).astype(np.float32)
            return np.asarray(values * self.scales[:, groups], dtype=np.float32)
        zeros = np.float32(self.scheme.midpoint) if self.zero_points is None else self.zero_points[:, groups]
        shifted = self.codes.astype(np.float32) - zeros
        return np.asarray(shifted * self.scales[:, groups], dtype=np.float32)


def fitting_group_sizes(in_features: int) -> list[int]:
    """The usual group sizes that divide `in_features`, always with -1 (one group a row)."""
    fitting = [size for size in _COMMON_GROUPS if size <= in_features and in_features % size == 0]
    if not fitting and in_features > 1:
        fitting = [max(math.gcd(in_features, size) for size in _COMMON_GROUPS)]
    return [*fitting, -1]
