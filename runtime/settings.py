"""How an engine is sized and asked to compute: what the user chooses, and what an engine accepts of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from gristmill.runtime.errors import InputError, UnsupportedError
from gristmill.runtime.executors.base import KVDtype

__all__ = ["Compute", "EngineModes", "EngineSettings", "ExecutorOptions"]

Compute = Literal["int8", "bfloat16", "float32"]

_AT_LEAST_ONE = (
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_scored_tokens",
    "max_waiting_tokens",
)
_AT_LEAST_ZERO = ("max_waiting",)
_MOST_BLOCK_SIZE = 1024
_OPTIONAL = ("max_model_len", "memory_bytes", "kv_cache_bytes", "threads")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Sizes and number formats of one engine. Raises InputError for a value that can't be meant.

    compute                 the number format of activations; None for the engine's default
    kv_cache_dtype          None stores keys and values in the artifact's own format, if it has one; else in
                            float32 beside float32 compute, and in bfloat16
    block_size              tokens in a block of the paged cache
    max_model_len           tokens of one request, prompt and answer; None for the model's own limit
    max_num_seqs            requests that run at once
    max_num_batched_tokens  tokens of one step; more serve prompts faster and let other requests wait longer
    max_scored_tokens       prompt positions of one step that report log probabilities
    max_waiting             requests that may queue beyond those that run
    max_waiting_tokens      prompt tokens that may queue
    itl_target_ms           time a step may take while answers are being written, in milliseconds: the prompts
                            read beside them are cut to fit
    prefix_caching          keep the keys and values of prompts for later ones that begin alike
    memory_bytes            most memory for weights, cache and work space together; None for what is free
    kv_cache_bytes          most memory for the cache; None for what is useful and fits
    golden_tolerance        largest KL in nats at which an engine passes its start-up proof; None for the
                            one that was recorded when the engine was made
    golden_full             prove all golden prompts at start, not one short one
    threads                 threads that compute; None for as many as this process may use
    debug_nan               look for NaN after each layer, and name the layer
    profile                 measure the time of each operation
    """

    compute: Compute | None = None
    kv_cache_dtype: KVDtype | None = None
    block_size: int = 16
    max_model_len: int | None = None
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    max_scored_tokens: int = 128
    max_waiting: int = 256
    max_waiting_tokens: int = 1 << 20
    itl_target_ms: float = 50.0
    prefix_caching: bool = True
    memory_bytes: int | None = None
    kv_cache_bytes: int | None = None
    golden_tolerance: float | None = None
    golden_full: bool = False
    threads: int | None = None
    debug_nan: bool = False
    profile: bool = False

    def __post_init__(self) -> None:
        _require_one_of("compute", self.compute, get_args(Compute))
        _require_one_of("kv_cache_dtype", self.kv_cache_dtype, get_args(KVDtype))
        for name in (*_AT_LEAST_ONE, *_AT_LEAST_ZERO, *_OPTIONAL):
            value, least = getattr(self, name), 0 if name in _AT_LEAST_ZERO else 1
            if value is None and name in _OPTIONAL:
                continue
            if not isinstance(value, int) or value < least:
                raise InputError(
                    f"{name} is invalid", found=value, expected=f"a whole number of at least {least}"
                )
        if self.block_size > _MOST_BLOCK_SIZE:
            raise InputError(
                "block_size is invalid", found=self.block_size, expected=f"at most {_MOST_BLOCK_SIZE}"
            )
        if not 0 < self.itl_target_ms < math.inf:
            raise InputError("itl_target_ms is invalid", found=self.itl_target_ms, expected="more than 0")

    @property
    def kv_dtype(self) -> KVDtype:
        """The number format of cached keys and values."""
        if self.kv_cache_dtype is not None:
            return self.kv_cache_dtype
        return "float32" if self.compute == "float32" else "bfloat16"


@dataclass(frozen=True, slots=True)
class ExecutorOptions:
    """What an executor is told beside its cache; each field as in `EngineSettings`."""

    compute: Compute
    threads: int | None = None
    debug_nan: bool = False
    profile: bool = False


@dataclass(frozen=True, slots=True)
class EngineModes:
    """What one engine can be asked for: its compute formats (the default first), KV formats and options."""

    engine: str
    computes: tuple[Compute, ...]
    kv_dtypes: tuple[KVDtype, ...]
    options: frozenset[str] = frozenset()

    def choose(
        self, settings: EngineSettings, kv_cache: KVDtype | None = None
    ) -> tuple[EngineSettings, ExecutorOptions]:
        """`settings` with the formats that will be used, and what the executor is told.

        `kv_cache` is the artifact's own format of keys and values, if it has one.

        Raises UnsupportedError naming what this engine lacks: nothing that was asked for is ignored.
        """
        compute = self.computes[0] if settings.compute is None else settings.compute
        settings = replace(settings, compute=compute, kv_cache_dtype=settings.kv_cache_dtype or kv_cache)
        settings = replace(settings, kv_cache_dtype=settings.kv_dtype)
        self._require("compute", compute, self.computes)
        self._require("kv_cache_dtype", settings.kv_dtype, self.kv_dtypes)
        for option in ("threads", "debug_nan", "profile"):
            if getattr(settings, option) and option not in self.options:
                raise UnsupportedError(f"the {self.engine} engine has no option {option}")
        options = ExecutorOptions(compute, settings.threads, settings.debug_nan, settings.profile)
        return settings, options

    def _require(self, what: str, asked: str, known: tuple[str, ...]) -> None:
        if asked not in known:
            raise UnsupportedError(
                f"the {self.engine} engine has no {what} {asked}", expected=" or ".join(known)
            )


def _require_one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value is not None and value not in known:
        raise InputError(f"{name} is unknown", found=value, expected=" or ".join(known))
