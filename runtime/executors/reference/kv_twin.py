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

__all__ = ["KV_STORAGE", "through_cache"]

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
"""The type in which the reference executor holds what `through_cache` gives."""

_INT8_MOST = 127
_INT4_MOST = 7


def through_cache(x: torch.Tensor, dtype: KVDtype, scales: torch.Tensor) -> torch.Tensor:
    """Keys or values [tokens, KV, D] as they come out of a cache in `dtype`, in `KV_STORAGE[dtype]`.

    `scales` [KV] are those of FP8: stored = number / scale. Integers have one
    scale a token and head, its largest magnitude over the largest code.
    """
    if dtype == "fp8":
        by_head = scales[:, None]
        stored = (x.float() / by_head).clamp(-FLOAT8_MOST, FLOAT8_MOST).to(torch.float8_e4m3fn)
        return stored.float() * by_head
    if dtype in ("int8", "int4"):
        return _rounded(x.float(), _INT8_MOST if dtype == "int8" else _INT4_MOST)
    return x.to(KV_STORAGE[dtype])


def _rounded(x: torch.Tensor, most: int) -> torch.Tensor:
    peak = x.abs().amax(dim=-1, keepdim=True)
    inverse = torch.nan_to_num(most / peak, posinf=0.0)
    return (x * inverse).round() * (peak / most)
