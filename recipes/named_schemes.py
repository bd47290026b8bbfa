"""The named schemes of a recipe, which mean what they mean in compressed-tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from gristmill.runtime.scheme import ActivationScheme, ScaleDtype

__all__ = ["NAMED_SCHEMES", "NamedScheme", "SchemeName"]

SchemeName = Literal[
    "W4A16",
    "W4A16_ASYM",
    "W8A16",
    "W8A16_ASYM",
    "W4A8",
    "W8A8",
    "FP8",
    "FP8_DYNAMIC",
    "FP8_BLOCK",
    "FP8A16",
    "NVFP4A16",
    "MXFP4A16",
]


@dataclass(frozen=True, slots=True)
class NamedScheme:
    """What a name fixes.

    `group_size` is None where a recipe has to write it. `activation` says how
    inputs are quantized; `may_be_static` that a recipe may choose static scales
    instead. `scale_dtype` is None where scales have the model's own type.
    """

    bits: Literal[4, 8]
    symmetric: bool
    group_size: int | None = None
    type: Literal["int", "float"] = "int"
    activation: ActivationScheme | None = None
    may_be_static: bool = False
    scale_dtype: ScaleDtype | None = None

    @property
    def is_weight_only_int(self) -> bool:
        """Whether bits, group size and symmetry say it all."""
        return self.type == "int" and self.activation is None


_INT8_TOKENS = ActivationScheme("int", 8, "token", dynamic=True)

NAMED_SCHEMES: Mapping[SchemeName, NamedScheme] = MappingProxyType(
    {
        "W4A16": NamedScheme(4, True),
        "W4A16_ASYM": NamedScheme(4, False),
        "W8A16": NamedScheme(8, True),
        "W8A16_ASYM": NamedScheme(8, False),
        "W4A8": NamedScheme(4, True, activation=_INT8_TOKENS),
        "W8A8": NamedScheme(8, True, -1, activation=_INT8_TOKENS, may_be_static=True),
        "FP8": NamedScheme(8, True, -1, "float", ActivationScheme("float", 8, "tensor", dynamic=False)),
        "FP8_DYNAMIC": NamedScheme(8, True, -1, "float", ActivationScheme("float", 8, "token", dynamic=True)),
        "FP8_BLOCK": NamedScheme(8, True, 128, "float", ActivationScheme("float", 8, "group", dynamic=True)),
        "FP8A16": NamedScheme(8, True, -1, "float"),
        "NVFP4A16": NamedScheme(4, True, 16, "float", scale_dtype="float8_e4m3fn"),
        "MXFP4A16": NamedScheme(4, True, 32, "float", scale_dtype="float8_e8m0fnu"),
    }
)
"""By name. FP8 has one scale a row of the weight, where compressed-tensors' preset has one for all."""
