"""How an engine is sized: what the user chooses, and nothing that is derived from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gristmill.runtime.errors import InputError
from gristmill.runtime.executors.base import KVDtype

__all__ = ["Compute", "EngineSettings"]

Compute = Literal["bfloat16", "float32"]

_AT_LEAST_ONE = ("block_size", "max_num_seqs", "max_num_batched_tokens", "max_scored_tokens")
_OPTIONAL = ("max_model_len", "memory_bytes", "kv_cache_bytes")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Sizes and number formats of one engine. Raises InputError for a value that can't be meant.

    compute                 the number format of activations
    kv_cache_dtype          None stores keys and values in `compute`
    block_size              tokens in a block of the paged cache
    max_model_len           tokens of one request, prompt and answer; None for the model's own limit
    max_num_seqs            requests that run at once
    max_num_batched_tokens  tokens of one step; more serve prompts faster and let other requests wait longer
    max_scored_tokens       prompt positions of one step that report log probabilities
    max_waiting             requests that may queue beyond those that run
    memory_bytes            most memory for weights, cache and work space together; None for what is free
    kv_cache_bytes          most memory for the cache; None for what is useful and fits
    golden_tolerance        largest KL in nats at which an engine passes its start-up proof
    """

    compute: Compute = "bfloat16"
    kv_cache_dtype: KVDtype | None = None
    block_size: int = 16
    max_model_len: int | None = None
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    max_scored_tokens: int = 128
    max_waiting: int = 256
    memory_bytes: int | None = None
    kv_cache_bytes: int | None = None
    golden_tolerance: float = 0.02

    def __post_init__(self) -> None:
        if self.compute not in ("bfloat16", "float32"):
            raise InputError("compute is unknown", found=self.compute, expected="bfloat16 or float32")
        for name in (*_AT_LEAST_ONE, *_OPTIONAL):
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if not isinstance(value, int) or value < 1:
                raise InputError(f"{name} is invalid", found=value, expected="a whole number of at least 1")

    @property
    def kv_dtype(self) -> KVDtype:
        """The number format of cached keys and values."""
        return self.compute if self.kv_cache_dtype is None else self.kv_cache_dtype
