"""What a quantized cache makes of keys and values: the slow, obvious twin of the native formats.

Numbers are rounded as they are written and kept as floats, so that all that reads the cache stays as it
is. Formats: `runtime/kernels/native/kernel_table.hpp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

from gristmill.runtime.executors.base import KVDtype
from gristmill.runtime.kv_scales import FLOAT8_MOST

__all__ = ["KV_STORAGE", "keys_through_cache", "values_through_cache"]

KV_STORAGE: Mapping[KVDtype, torch.dtype] = MappingProxyType(
    {
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
        "fp8": torch.float32,
        "int8": torch.float32,
        "int4": torch.float32,
    }
)
"""The type in which the reference executor holds what these functions give."""

_INT8_MOST = 127
_INT4_MOST = 7


def keys_through_cache(x: torch.Tensor, dtype: KVDtype, scales: torch.Tensor) -> torch.Tensor:
    """Keys [tokens, KV, D] as they come out of a cache in `dtype`, in `KV_STORAGE[dtype]`.

    `scales` [KV] are those of FP8: stored = number / scale. Integers have one
    scale a token and head, its largest magnitude over the largest code. Keys of
    an int4 cache have eight bits.
    """
    return _rounded(x, _INT8_MOST) if dtype in ("int8", "int4") else _as_floats(x, dtype, scales)


def values_through_cache(x: torch.Tensor, dtype: KVDtype, scales: torch.Tensor) -> torch.Tensor:
    """Values likewise; those of an int4 cache have four bits."""
    if dtype in ("int8", "int4"):
        return _rounded(x, _INT8_MOST if dtype == "int8" else _INT4_MOST)
    return _as_floats(x, dtype, scales)


def _as_floats(x: torch.Tensor, dtype: KVDtype, scales: torch.Tensor) -> torch.Tensor:
    if dtype != "fp8":
        return x.to(KV_STORAGE[dtype])
    by_head = scales[:, None]
    stored = (x.float() / by_head).clamp(-FLOAT8_MOST, FLOAT8_MOST).to(torch.float8_e4m3fn)
    return stored.float() * by_head


def _rounded(x: torch.Tensor, most: int) -> torch.Tensor:
    x = x.float()
    peak = x.abs().amax(dim=-1, keepdim=True)
    inverse = torch.nan_to_num(most / peak, posinf=0.0)
    return (x * inverse).round() * (peak / most)
