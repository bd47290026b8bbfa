"""An engine proves itself: golden prompts in each of its number formats, and the tolerance of each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from gristmill.artifacts.manifest import Engine, GoldenProof
from gristmill.artifacts.proofs import ModeProof
from gristmill.runtime.checkpoint import open_checkpoint
from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.errors import IntegrityError, UnsupportedError
from gristmill.runtime.executors.base import Executor, ExecutorInfo, KVCacheConfig, KVDtype
from gristmill.runtime.executors.load import OpenedEngine, open_engine
from gristmill.runtime.golden import (
    COARSE_TOLERANCE,
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

LARGEST_TOLERANCE = COARSE_TOLERANCE
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


def prove_engine(folder: EngineFolder, kv_dtypes: Sequence[KVDtype] | None = None) -> EngineProof:
    """Run all golden prompts of `folder` in every compute format and every KV format, or `kv_dtypes`.

    Raises IntegrityError if the default formats are beyond `LARGEST_DIFFERENCE`
    (`LARGEST_TOLERANCE` where these quantize keys and values, or where rounding
    can send a token to another expert), or if the engine does not use the scales
    that its checkpoint has for an FP8 cache.
    Others may be coarser, as chosen by who serves with them; they are left out
    if the engine gives no finite logits or can't combine them.
    """
    opened = open_engine(folder)
    default, _ = opened.modes.choose(EngineSettings(), folder.kv_cache)
    modes: list[ModeProof] = []
    entry: Engine | None = None
    for settings in _modes(opened.modes, kv_dtypes or opened.modes.kv_dtypes, default.kv_dtype):
        is_default = (settings.compute, settings.kv_dtype) == (default.compute, default.kv_dtype)
        try:
            info, report = _measure(opened, folder, settings, required=is_default)
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


def load_default(folder: EngineFolder, tokens: int, asked: EngineSettings | None = None) -> Executor:
    """The engine in its default formats, or those `asked` for, with a cache for `tokens` tokens."""
    opened = open_engine(folder)
    settings, options = opened.modes.choose(asked or EngineSettings(), folder.kv_cache)
    return opened.load(KVCacheConfig(-(-tokens // _BLOCK), _BLOCK, settings.kv_dtype), options)


def _modes(modes: EngineModes, kv_dtypes: Sequence[KVDtype], default: KVDtype) -> Iterator[EngineSettings]:
    distinct = [dtype for dtype in kv_dtypes if dtype not in _AS_BFLOAT16 or dtype == default]
    for compute, kv_dtype in product(modes.computes, distinct):
        yield EngineSettings(compute=compute, kv_cache_dtype=kv_dtype)


def _measure(
    opened: OpenedEngine, folder: EngineFolder, asked: EngineSettings, *, required: bool
) -> tuple[ExecutorInfo, GoldenReport]:
    settings, options = opened.modes.choose(asked)
    executor = opened.load(golden_cache(folder.golden, settings.kv_dtype), options)
    try:
        _require_kv_scales(executor.info, folder)
        run = require_golden if required else compare_golden
        is_coarse = settings.kv_dtype not in ("bfloat16", *_AS_BFLOAT16) or opened.plan.has_experts
        limit = LARGEST_TOLERANCE if is_coarse else LARGEST_DIFFERENCE
        return executor.info, run(executor, folder.golden, limit)
    finally:
        executor.close()


def _require_kv_scales(info: ExecutorInfo, folder: EngineFolder) -> None:
    """An FP8 cache is read with the checkpoint's scales, to the last bit, or not at all."""
    if info.kv_cache != "fp8":
        return
    meant = open_checkpoint(folder.checkpoint).kv_scales
    if info.kv_scales == meant:
        return
    layer = next((i for i, (a, b) in enumerate(zip(info.kv_scales, meant, strict=False)) if a != b), 0)
    raise IntegrityError(
        f"engine {info.name} ignores the checkpoint's scales of layer {layer}'s keys and values",
        found=info.kv_scales[layer] if info.kv_scales else "a scale of 1",
        expected=meant[layer] if meant else "a scale of 1",
        hint="compile the engine again from this checkpoint",
    )


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
