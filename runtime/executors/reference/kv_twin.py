"""What a quantized cache makes of keys and values: the slow, obvious twin of the native formats.

Numbers are rounded as they are written and kept as floats, so that all that reads the cache stays as it
is. Formats: `runtime/kernels/native/kernel_table.hpp`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import torch

from gristmill.runtime.executors.base import KVDtype
from gristmill.runtime.scheme import FLOAT8_MAX

__all__ = ["KV_STORAGE", "hadamard", "keys_through_cache", "values_through_cache"]

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


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """The last axis times the orthonormal Hadamard matrix (Sylvester's), which is its own inverse.

    If its size is no power of two, in blocks of the largest one that divides it.
    """
    shape, size = x.shape, x.shape[-1]
    block = size & -size
    half = block // 2
    while half > 0:
        first, second = x.reshape(-1, 2, half).unbind(1)
        x = torch.stack((first + second, first - second), dim=1)
        half //= 2
    return x.reshape(shape) * (1 / math.sqrt(block))


def keys_through_cache(x: torch.Tensor, dtype: KVDtype, scales: torch.Tensor) -> torch.Tensor:
    """Keys [tokens, KV, D] as they come out of a cache in `dtype`, in `KV_STORAGE[dtype]`.

    `scales` [KV] are those of FP8: stored = number / scale. Integers have one
    scale a token and head, its largest magnitude over the largest code. Keys of
    an int4 cache have eight bits. Quantized keys are stored rotated (QuaRot,
    arXiv 2404.00456, section 4) and come out turned back, which stands for
    queries that are rotated too.
    """
    if dtype not in ("fp8", "int8", "int4"):
        return x.to(KV_STORAGE[dtype])
    rotated = hadamard(x.float())
    return hadamard(_as_float8(rotated, scales) if dtype == "fp8" else _rounded(rotated, _INT8_MOST))


def values_through_cache(x: torch.Tensor, dtype: KVDtype, scales: torch.Tensor) -> torch.Tensor:
    """Values likewise; those of an int4 cache have four bits."""
    if dtype in ("int8", "int4"):
        return _rounded(x, _INT8_MOST if dtype == "int8" else _INT4_MOST)
    return _as_float8(x, scales) if dtype == "fp8" else x.to(KV_STORAGE[dtype])


def _as_float8(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    by_head = scales[:, None]
    stored = (x.float() / by_head).clamp(-FLOAT8_MAX, FLOAT8_MAX).to(torch.float8_e4m3fn)
    return stored.float() * by_head


def _rounded(x: torch.Tensor, most: int) -> torch.Tensor:
    x = x.float()
    peak = x.abs().amax(dim=-1, keepdim=True)
    inverse = torch.nan_to_num(most / peak, posinf=0.0)
    return (x * inverse).round() * (peak / most)
