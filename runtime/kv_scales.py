"""Calibrated scales of a cache in FP8, for every layer's keys and values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gristmill.runtime.errors import InputError
from gristmill.runtime.model_plan import ModelPlan

__all__ = [
    "KVScales",
    "LayerKVScales",
    "ScaleShare",
    "check_kv_scales",
    "scale_share",
    "with_scales",
]

ScaleShare = Literal["tensor", "head"]
"""What shares one scale: all heads of a layer's keys (and of its values), or one KV head."""


@dataclass(frozen=True, slots=True)
class LayerKVScales:
    """One layer's scales, stored = number / scale, after the rotary embedding.

    Each tuple has one entry for all heads, or one for each KV head.
    """

    keys: tuple[float, ...]
    values: tuple[float, ...]

    def by_head(self, num_kv_heads: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The scales of keys and of values, one for each KV head."""
        return _by_head(self.keys, num_kv_heads), _by_head(self.values, num_kv_heads)


KVScales: TypeAlias = tuple[LayerKVScales, ...]
"""One entry a layer; empty where none were calibrated, and a scale of 1 is meant."""


def scale_share(scales: KVScales) -> ScaleShare:
    """Whether heads have scales of their own."""
    return "tensor" if all(len(layer.keys) == len(layer.values) == 1 for layer in scales) else "head"


def with_scales(attention: str, scales: KVScales) -> str:
    """The name of an attention kernel with what shares the scales that it reads, if there are any."""
    return f"{attention}, fp8 scales by {scale_share(scales)}" if scales else attention


def check_kv_scales(scales: KVScales, plan: ModelPlan) -> None:
    """Raise InputError, naming the layer, for scales that are not the plan's or are no scales."""
    if not scales:
        return
    if len(scales) != len(plan.layers):
        raise InputError("kv_scales", found=f"{len(scales)} layers", expected=f"{len(plan.layers)} layers")
    for layer, found in zip(plan.layers, scales, strict=True):
        for name, values in (("keys", found.keys), ("values", found.values)):
            where = f"kv_scales[{layer.index}].{name}"
            heads = layer.attention.num_kv_heads
            if len(values) not in (1, heads):
                raise InputError(where, found=f"{len(values)} scales", expected=f"1 or {heads}")
            if not all(math.isfinite(value) and value > 0 for value in values):
                raise InputError(where, found=list(values), expected="positive, finite numbers")


def _by_head(scales: tuple[float, ...], num_kv_heads: int) -> tuple[float, ...]:
    return scales * num_kv_heads if len(scales) == 1 else scales
