"""The native executor: the C++ engine over a memory-mapped weights file, one call a step."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.errors import InputError, IntegrityError, InternalError, OutsideError, UnsupportedError
from gristmill.runtime.executors.base import ExecutorInfo, KVCacheConfig, SequenceStep
from gristmill.runtime.executors.native.model_spec import model_spec
from gristmill.runtime.executors.native.modes import NATIVE_MODES
from gristmill.runtime.executors.native.stored import EngineFile, StoredWeight
from gristmill.runtime.executors.step_check import check_batch, check_copies
from gristmill.runtime.kernels import _native
from gristmill.runtime.kernels.instruction_set import chosen_instruction_set
from gristmill.runtime.kv_scales import KVScales, with_scales
from gristmill.runtime.model_plan import ModelPlan
from gristmill.runtime.settings import ExecutorOptions

__all__ = ["NativeExecutor"]

_UNIT_TOKENS = 16
_MOST_THREADS = 512
_MOST_THREADS_A_PROCESSOR = 4
_MOST_UNITS = 2**31 - 1
_MOST_BLOCK_TOKENS = 2**31 - _UNIT_TOKENS


class NativeExecutor:
    """An `Executor` in C++ with the instruction set that `GRISTMILL_ISA` names, or the machine's best.

    `compute` int8 quantizes the input of each linear to int8 per token and
    group of 32; bfloat16 rounds it to bfloat16. Everything between is float32.
    Raises InputError or UnsupportedError for what the engine or this machine
    does not have, OutsideError for memory or threads that the system refuses,
    and IntegrityError if calibrated scales of an FP8 cache do not arrive.
    """

    def __init__(self, engine: EngineFile, cache: KVCacheConfig, options: ExecutorOptions) -> None:
        _check_settings(cache, options)
        self._plan = engine.plan
        self._cache = cache
        self._engine: _native.Engine | None = _open_engine(engine, cache, options)
        kv_scales = _kv_scales_in_use(engine, cache, self._engine)
        self._info = ExecutorInfo(
            name="native-x86",
            compute=options.compute,
            kv_cache=cache.dtype,
            kernels=_kernel_names(engine, options, self._engine.instruction_set, kv_scales),
            kv_scales=kv_scales,
        )

    @property
    def plan(self) -> ModelPlan:
        return self._plan

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    @property
    def cache(self) -> KVCacheConfig:
        return self._cache

    @property
    def threads(self) -> int:
        """Threads that compute a step, the calling one included."""
        return self._open.threads

    def execute(self, batch: Sequence[SequenceStep]) -> NDArray[np.float32]:
        """See `Executor.execute`. With `debug_nan`, raises InternalError that names the layer.

        The logits lie in the engine's memory, read-only, and keep it even after `close`.
        Raises OutsideError if the system has no memory for a batch of this size.
        """
        flat = check_batch(self._plan, self._cache, batch)
        if not batch:
            return np.empty((0, self._plan.vocab_size), dtype=np.float32)
        try:
            with _memory_for(
                f"a step of {len(flat.token_ids)} tokens", "compute fewer tokens or logits a step"
            ):
                return self._open.execute(
                    flat.token_ids,
                    np.array([entry.start for entry in batch], np.int32),
                    np.array(flat.num_tokens, np.int32),
                    flat.block_ids,
                    np.cumsum([0, *flat.num_blocks], dtype=np.int32),
                    np.array(_logit_rows(batch, flat.num_tokens), np.int32),
                )
        except RuntimeError as error:
            raise InternalError(str(error), hint="the weights may be damaged") from error

    def sample_rows(
        self, logits: NDArray[np.float32], rows: Sequence[int], states: Sequence[_native.SamplerState]
    ) -> list[_native.Choice]:
        """Choose the tokens of rows of logits on the threads of the steps, see `RowSampler`."""
        return self._open.sample_rows(logits, rows, states)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """See `Executor.copy_blocks`."""
        check_copies(self._cache, pairs)
        for source, target in pairs:
            self._open.copy_block(source, target)

    def profile(self) -> dict[str, float]:
        """Seconds by operation so far, waiting at barriers included; zeros without `profile`."""
        return dict(self._open.seconds)

    def close(self) -> None:
        """Give the memory back, once no logits are held; the executor can't be used afterwards."""
        self._engine = None

    @property
    def _open(self) -> _native.Engine:
        if self._engine is None:
            raise InternalError("the native executor is closed")
        return self._engine


def _check_settings(cache: KVCacheConfig, options: ExecutorOptions) -> None:
    if cache.num_blocks < 1 or cache.block_size < 1 or cache.block_size % _UNIT_TOKENS:
        raise InputError(
            "KV cache of the native engine",
            found=f"{cache.num_blocks} blocks of {cache.block_size} tokens",
            expected=f"at least one block of a multiple of {_UNIT_TOKENS} tokens",
        )
    if cache.block_size > _MOST_BLOCK_TOKENS:
        raise InputError(
            "KV cache of the native engine",
            found=f"blocks of {cache.block_size} tokens",
            expected=f"at most {_MOST_BLOCK_TOKENS}",
        )
    most_blocks = _MOST_UNITS // (cache.block_size // _UNIT_TOKENS)
    if cache.num_blocks > most_blocks:
        raise InputError(
            "KV cache of the native engine",
            found=f"{cache.num_blocks} blocks",
            expected=f"at most {most_blocks}",
        )
    for what, found, known in (
        ("compute type", options.compute, NATIVE_MODES.computes),
        ("KV cache type", cache.dtype, NATIVE_MODES.kv_dtypes),
    ):
        if found not in known:
            raise UnsupportedError(f"native engine: {what}", found=found, expected=" or ".join(known))
    most = max(_MOST_THREADS, _MOST_THREADS_A_PROCESSOR * _native.effective_threads())
    if options.threads is not None and not 1 <= options.threads <= most:
        raise InputError("threads of the native engine", found=options.threads, expected=f"1 to {most}")


def _open_engine(engine: EngineFile, cache: KVCacheConfig, options: ExecutorOptions) -> _native.Engine:
    threads = options.threads or _native.effective_threads()
    weights = _mapped(engine)  # the engine holds on to the mapping
    settings = {
        "instruction_set": chosen_instruction_set(_native.instruction_sets()),
        "threads": threads,
        "cores": [],
        "kv_type": cache.dtype,
        "num_blocks": cache.num_blocks,
        "block_size": cache.block_size,
        "integer_activations": options.compute == "int8",
        "debug_nan": options.debug_nan,
        "profile": options.profile,
    }
    blocks = f"{cache.num_blocks} blocks of {cache.block_size} tokens"
    try:
        with _memory_for(f"a KV cache of {blocks}", "ask for fewer blocks"):
            return _native.Engine(weights, model_spec(engine), settings)
    except OSError as error:
        raise OutsideError(
            f"the system refuses {threads} threads to the native engine",
            found=error,
            hint="ask for fewer threads, or raise the limit on processes and memory",
        ) from error


def _mapped(engine: EngineFile) -> mmap.mmap:
    """The weights file, which something may have touched since it was checked."""
    try:
        with engine.path.open("rb") as file:
            return mmap.mmap(file.fileno(), engine.bytes, access=mmap.ACCESS_READ)
    except OSError as error:
        raise OutsideError(f"can't map {engine.path} into memory", found=error) from error
    except ValueError as error:
        raise IntegrityError(f"{engine.path}: bytes", found=error, expected=engine.bytes) from error


def _kv_scales_in_use(engine: EngineFile, cache: KVCacheConfig, opened: _native.Engine) -> KVScales:
    """The engine file's scales, compared with those that the loaded engine multiplies by."""
    if cache.dtype != "fp8" or not engine.kv_scales:
        return ()
    for layer, scales, used in zip(engine.plan.layers, engine.kv_scales, opened.kv_scales, strict=True):
        meant = scales.by_head(layer.attention.num_kv_heads)
        for name, found, expected in zip(("keys", "values"), used, meant, strict=True):
            if tuple(found) != tuple(map(_as_float32, expected)):
                raise IntegrityError(
                    f"native engine: scales of layer {layer.index}'s {name}", found=found, expected=expected
                )
    return engine.kv_scales


def _as_float32(number: float) -> float:
    return float(np.float32(number))


@contextmanager
def _memory_for(what: str, hint: str) -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise OutsideError(f"native engine: {what} does not fit", found=error, hint=hint) from error


def _logit_rows(batch: Sequence[SequenceStep], lengths: Sequence[int]) -> list[int]:
    rows: list[int] = []
    end = 0
    for entry, length in zip(batch, lengths, strict=True):
        end += length
        rows.extend(range(end - entry.num_logit_rows, end))
    return rows


def _kernel_names(
    engine: EngineFile, options: ExecutorOptions, instruction_set: str, kv_scales: KVScales
) -> dict[str, str]:
    """The kernel of each layer kind; kinds that differ between layers are listed."""
    kinds: dict[str, set[str]] = {}
    for layer in engine.layers:
        for place, weight in layer.weights.items():
            kinds.setdefault(_layer_kind(place), set()).add(_kernel_name(weight, options))
    kinds["head"] = {_kernel_name(engine.head, options)}
    kinds["attention"] = {with_scales("paged", kv_scales)}
    return {name: f"{' and '.join(sorted(names))} ({instruction_set})" for name, names in kinds.items()}


def _layer_kind(place: str) -> str:
    """`gate_up` of a block stays that, of any of its experts it is `experts_gate_up`."""
    *_, name = place.split(".")
    return name if name == place or name == "router" else f"experts_{name}"


def _kernel_name(weight: StoredWeight, options: ExecutorOptions) -> str:
    if weight.kind in ("bfloat16", "float32"):
        return f"{weight.kind} x {weight.kind}"
    group = "channel" if weight.group == weight.columns else f"g{weight.group}"
    points = " asym" if weight.zero_points else ""
    return f"{weight.kind} {group}{points} x {options.compute}"
