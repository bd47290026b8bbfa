"""What a quantized cache of keys and values costs by itself: the KV part of `make bench-quality`.

The original's weights on the native engine in bfloat16 arithmetic, with each
cache beside an exact one (bfloat16), over the same tokens in windows of 512 and
of 4,096. The peers' figures are of windows of 512 and 2,048, simulated in torch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gristmill.calibration.blocks import load_block
from gristmill.calibration.kv_peaks import KVPeaks, kv_peaks
from gristmill.calibration.samples import TokenSamples, samples_digest
from gristmill.pipeline.compile.native_x86 import compile_native
from gristmill.pipeline.kv_calibration import kv_scales_of
from gristmill.pipeline.validate.compare import compare_engines
from gristmill.pipeline.validate.data import HeldOut, longest_window
from gristmill.pipeline.validate.logits import ExecutorLogits
from gristmill.pipeline.validate.result import ValidationResult
from gristmill.runtime.architectures import plan_model
from gristmill.runtime.executors.base import KVCacheConfig, KVDtype
from gristmill.runtime.executors.native.engine_file import read_engine_file
from gristmill.runtime.executors.native.executor import NativeExecutor
from gristmill.runtime.executors.reference.linears import Weights
from gristmill.runtime.formats.write import write_checkpoint
from gristmill.runtime.kv_scales import KVScales, ScaleShare
from gristmill.runtime.model_plan import LayerPlan
from gristmill.runtime.settings import ExecutorOptions
from gristmill.runtime.sources.base import ModelSource
from gristmill.runtime.sources.hf_folder import HfFolder
from tests.benchmarks.table import result_row, table_line

__all__ = ["CACHES", "Cache", "measure_caches"]

COMMAND = "make bench-quality ARGS='--only KV'"
WINDOWS = (512, 4096)
PEER = "simulated in torch"
_CALIBRATION = 16
"""Sequences of the calibration set that the scales are measured on."""

_HEADER = ("", "KL 512", "limit", "wiki", "chat", "top-1", "KL 4,096", "wiki", "chat", "top-1")


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache, the KL that it may cost, and the peers' KL where they have it."""

    name: str
    dtype: KVDtype
    limit: float
    peer_kl: float | None
    share: ScaleShare | None = None


CACHES = (
    Cache("KV int8", "int8", 0.003, 0.0025),
    Cache("KV fp8 per tensor", "fp8", 0.011, 0.0107, "tensor"),
    Cache("KV fp8 per head", "fp8", 0.011, None, "head"),
    Cache("KV int4", "int4", 0.059, 0.0590),
)


def measure_caches(
    caches: Sequence[Cache], reference: Path, calibration: TokenSamples, data: Sequence[HeldOut]
) -> list[dict[str, Any]]:
    """Print a table of `caches` and return its rows for the JSON file."""
    source = HfFolder(reference)
    with tempfile.TemporaryDirectory(dir=reference.parent) as name:
        folder = Path(name)
        peaks = _peaks(source, calibration) if any(cache.share for cache in caches) else []
        for share in {cache.share for cache in caches} | {None}:
            scales = () if share is None else kv_scales_of(peaks, share, "bfloat16")
            _write_engine(folder / str(share), source, scales)
        results = {window: _compare(caches, folder, _cut(data, window)) for window in WINDOWS}
    print(table_line(_HEADER, first=18, width=9))
    rows: list[dict[str, Any]] = []
    for cache in caches:
        found = {window: results[window][cache.name] for window in WINDOWS}
        print(table_line(_cells(cache, found), first=18, width=9))
        rows.extend(_rows(cache, found))
    return rows


def _peaks(source: ModelSource, calibration: TokenSamples) -> list[KVPeaks]:
    def served(layer: LayerPlan, dtype: torch.dtype) -> Weights:
        return load_block(source, layer, dtype)

    sequences = calibration.sequences[:_CALIBRATION]
    return list(kv_peaks(plan_model(source.config), source, sequences, served, compute="bfloat16"))


def _write_engine(folder: Path, source: ModelSource, scales: KVScales) -> None:
    write_checkpoint(folder / "checkpoint", source, {}, {}, "compressed-tensors", kv_scales=scales)
    compile_native(folder / "checkpoint", folder / "engine")


def _cut(data: Sequence[HeldOut], window: int) -> list[HeldOut]:
    """The same tokens in other windows."""
    cut = []
    for entry in data:
        tokens = [token for sequence in entry.windows for token in sequence]
        windows = tuple(tuple(tokens[i : i + window]) for i in range(0, len(tokens) - window + 1, window))
        samples = replace(entry.samples, sequences=windows, digest=samples_digest(windows))
        cut.append(HeldOut(entry.name, samples))
    return cut


def _compare(
    caches: Sequence[Cache], folder: Path, data: Sequence[HeldOut]
) -> Mapping[str, ValidationResult]:
    blocks = longest_window(data) // 16

    def opened(dtype: KVDtype, share: ScaleShare | None) -> ExecutorLogits:
        engine = read_engine_file(folder / str(share) / "engine")
        executor = NativeExecutor(engine, KVCacheConfig(blocks, 16, dtype), ExecutorOptions("bfloat16"))
        return ExecutorLogits(stack.enter_context(closing(executor)))

    with ExitStack() as stack:
        candidates = {cache.name: opened(cache.dtype, cache.share) for cache in caches}
        return compare_engines(opened("bfloat16", None), candidates, data)


def _cells(cache: Cache, found: Mapping[int, ValidationResult]) -> tuple[str, ...]:
    cells = [cache.name]
    for window, result in found.items():
        cells.append(f"{result.metrics.kl_mean:.4f}")
        if window == WINDOWS[0]:
            cells.append(f"<{cache.limit:g}")
        cells += [f"{entry.metrics.kl_mean:.4f}" for entry in result.data]
        cells.append(f"{result.metrics.top1_agreement:.3f}")
    return tuple(cells)


def _rows(cache: Cache, found: Mapping[int, ValidationResult]) -> Iterator[dict[str, Any]]:
    row = partial(result_row, peer=PEER, unit="nats", command=COMMAND)
    for window, result in found.items():
        peer, limit = (cache.peer_kl, None)
        if window == WINDOWS[0]:
            limit = None if peer is None else cache.limit / peer
        yield row(
            f"{cache.name}: KL, windows of {window}", result.metrics.kl_mean, peer_value=peer, limit=limit
        )
