"""An engine proves itself: golden prompts in each of its number formats, and the tolerance of each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from gristmill.artifacts.manifest import Engine, GoldenProof
from gristmill.artifacts.proofs import ModeProof
from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.errors import UnsupportedError
from gristmill.runtime.executors.base import Executor, ExecutorInfo, KVCacheConfig
from gristmill.runtime.executors.load import OpenedEngine, open_engine
from gristmill.runtime.golden import (
    DEFAULT_TOLERANCE,
    GoldenReport,
    compare_golden,
    golden_cache,
    require_golden,
)
from gristmill.runtime.settings import EngineModes, EngineSettings

__all__ = [
    "LARGEST_DIFFERENCE",
    "LARGEST_TOLERANCE",
    "EngineProof",
    "load_default",
    "prove_engine",
    "tolerance_of",
]

LARGEST_DIFFERENCE = 0.5
"""KL in nats of a golden row at which a new engine, in its default formats, counts as wrong."""

LARGEST_TOLERANCE = 2.0
"""The most that any mode is allowed later; what a damaged engine says is further away."""

_FACTOR = 4.0
_BLOCK = 16
_AS_BFLOAT16 = ("float16", "float32")  # KV formats that are at least as exact


@dataclass(frozen=True, slots=True)
class EngineProof:
    """The manifest's entry of an engine, in its default formats, and the proof of each pair of formats."""

    engine: Engine
    modes: tuple[ModeProof, ...]


def tolerance_of(kl_max: float) -> float:
    """The tolerance for later starts of a mode whose worst golden row measured `kl_max` nats.

    Four times as much: another instruction set rounds in another order and
    damage costs more. Between what bfloat16 noise is given and a cap.
    """
    return min(max(_FACTOR * kl_max, DEFAULT_TOLERANCE), LARGEST_TOLERANCE)


def prove_engine(folder: EngineFolder, *, streamed: bool = False) -> EngineProof:
    """Run all golden prompts of `folder` in every compute and KV format of its engine.

    Raises IntegrityError if the default formats are beyond `LARGEST_DIFFERENCE`.
    Others may be coarser, as chosen by who serves with them; they are left out
    if the engine gives no finite logits or can't combine them.
    """
    opened = open_engine(folder)
    default, _ = opened.modes.choose(EngineSettings())
    modes: list[ModeProof] = []
    entry: Engine | None = None
    for settings in _modes(opened.modes):
        is_default = (settings.compute, settings.kv_dtype) == (default.compute, default.kv_dtype)
        try:
            info, report = _measure(opened, folder, settings, required=is_default, streamed=streamed)
        except UnsupportedError:
            if is_default:
                raise
            continue
        if is_default:
            entry = Engine(folder.target, info.compute, info.kv_cache, dict(info.kernels), _golden(report))
        if math.isfinite(report.kl_max):
            modes.append(_mode(info, report))
    assert entry is not None, "the default formats are among all formats"
    return EngineProof(entry, tuple(modes))


def load_default(
    folder: EngineFolder, tokens: int, asked: EngineSettings | None = None, *, streamed: bool = False
) -> Executor:
    """The engine in its default formats, or those `asked` for, with a cache for `tokens` tokens.

    `streamed` as in `ExecutorOptions`.
    """
    opened = open_engine(folder)
    settings, options = opened.modes.choose(asked or EngineSettings())
    options = replace(options, streamed=streamed)
    return opened.load(KVCacheConfig(-(-tokens // _BLOCK), _BLOCK, settings.kv_dtype), options)


def _modes(modes: EngineModes) -> Iterator[EngineSettings]:
    kv_dtypes = [dtype for dtype in modes.kv_dtypes if dtype not in _AS_BFLOAT16]
    for compute, kv_dtype in product(modes.computes, kv_dtypes):
        yield EngineSettings(compute=compute, kv_cache_dtype=kv_dtype)


def _measure(
    opened: OpenedEngine, folder: EngineFolder, asked: EngineSettings, *, required: bool, streamed: bool
) -> tuple[ExecutorInfo, GoldenReport]:
    settings, options = opened.modes.choose(asked)
    options = replace(options, streamed=streamed)
    executor = opened.load(golden_cache(folder.golden, settings.kv_dtype), options)
    try:
        run = require_golden if required else compare_golden
        return executor.info, run(executor, folder.golden, LARGEST_DIFFERENCE)
    finally:
        executor.close()


def _golden(report: GoldenReport) -> GoldenProof:
    tolerance = tolerance_of(report.kl_max)
    return GoldenProof(len(report.prompts), report.kl_mean, report.kl_max, report.top1_agreement, tolerance)


def _mode(info: ExecutorInfo, report: GoldenReport) -> ModeProof:
    return ModeProof(
        info.compute,
        info.kv_cache,
        report.kl_mean,
        report.kl_max,
        report.top1_agreement,
        tolerance_of(report.kl_max),
    )
