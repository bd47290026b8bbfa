"""The validate stage: the written checkpoint, on every engine that serves it, against the original model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from gristmill.artifacts.engines import REFERENCE, own_kv_cache
from gristmill.artifacts.golden import read_golden, write_golden
from gristmill.artifacts.manifest import Engine, GoldenProof
from gristmill.artifacts.proofs import proofs_file, read_proofs, write_proofs
from gristmill.calibration.samples import TokenSamples
from gristmill.pipeline.checkpoint import WrittenCheckpoint
from gristmill.pipeline.compile.stage import CompiledEngine
from gristmill.pipeline.engine_proof import EngineProof, load_default, prove_engine
from gristmill.pipeline.progress import Progress
from gristmill.pipeline.stages import StageCache, code_version, stage_key
from gristmill.pipeline.validate.compare import compare_engines
from gristmill.pipeline.validate.data import HeldOut, longest_window
from gristmill.pipeline.validate.logits import ExecutorLogits, LogitsSource
from gristmill.pipeline.validate.outliers import ChannelPeaks, LayerOutliers
from gristmill.pipeline.validate.result import ValidationResult
from gristmill.runtime.checkpoint import open_checkpoint
from gristmill.runtime.engine_folder import EngineFolder, GoldenPrompt
from gristmill.runtime.executors.base import Executor, KVCacheConfig, KVDtype
from gristmill.runtime.executors.load import open_engine
from gristmill.runtime.files import write_atomic
from gristmill.runtime.golden import DEFAULT_TOLERANCE, record_golden, require_golden
from gristmill.runtime.settings import EngineSettings, ExecutorOptions

__all__ = ["Proof", "prove", "validate_engines"]

_BLOCK = 16
_CONTINUATION = 16
_CODE = (
    "gristmill.calibration.walk",
    "gristmill.pipeline.engine_proof",
    "gristmill.pipeline.validate",
    "gristmill.pipeline.prove",
    "gristmill.runtime.checkpoint",
    "gristmill.runtime.executors",
    "gristmill.runtime.formats",
    "gristmill.runtime.golden",
    "gristmill.runtime.kernels",
)
_VALIDATION = TypeAdapter(dict[str, ValidationResult])
_ENGINES = TypeAdapter(tuple[Engine, ...])
_OUTLIERS = TypeAdapter(tuple[LayerOutliers, ...])


@dataclass(frozen=True, slots=True, eq=False)
class Proof:
    """What was measured: validation by engine and outlier channels of the original (both empty without
    held-out data), golden prompts, self-tests.
    """

    validation: Mapping[str, ValidationResult]
    golden: tuple[GoldenPrompt, ...]
    engines: tuple[EngineProof, ...]
    outliers: tuple[LayerOutliers, ...]


def prove(
    written: WrittenCheckpoint,
    compiled: Sequence[CompiledEngine],
    original: Callable[..., LogitsSource],
    held_out: Sequence[HeldOut],
    calibration: TokenSamples | None,
    golden: Sequence[Sequence[int]],
    inputs: Mapping[str, Any],
    stages: StageCache,
    progress: Progress,
    *,
    kv_cache: KVDtype,
    streamed: bool = False,
) -> Proof:
    """Validate and record golden prompts, or take what an earlier build of the same inputs measured.

    The engines are the reference one and those `compiled`. `original` opens the
    source model, with the `observe` and `progress` of `OriginalLogits`; `inputs`
    is what, beside the checkpoint and the data, determines the result. Golden logits come from
    float32 compute, and every engine must reproduce them. Engines are proved and
    validated with keys and values in `kv_cache`. With `streamed`, the reference
    engine's weights stay on disk; what it says is the same. Gates are not judged here.
    """
    tokens = [(entry.name, entry.samples.digest) for entry in held_out]
    seen = None if calibration is None else calibration.digest
    engines = {engine.target: engine.key for engine in compiled}
    inputs = {**inputs, "checkpoint": written.key, "engines": engines, "held_out": tokens, "golden": golden}
    inputs |= {"calibration": seen, "kv_cache": kv_cache}
    key = stage_key("validate", inputs, code_version(_CODE))
    if (done := stages.finished("validate", key)) is not None:
        return _read(done)
    with stages.open("validate", key) as stage:
        progress.stage("prove", 1 + len(compiled), "engines")
        prompts = _record(written.folder, golden, streamed)
        choice = own_kv_cache(kv_cache)
        folders = [
            EngineFolder(
                "engine", engine.target, engine.folder, written.folder, golden=prompts, kv_cache=choice
            )
            for engine in compiled
        ]
        place = (REFERENCE, written.folder, written.folder)
        reference = EngineFolder("checkpoint", *place, golden=prompts, kv_cache=choice, streamed=streamed)
        proofs = [_prove_reference(reference)]
        progress.advance()
        for folder in folders:
            proofs.append(prove_engine(folder))
            progress.advance()
        peaks = ChannelPeaks()
        watched = partial(original, observe=peaks.update)
        validation = validate_engines([reference, *folders], watched, held_out, calibration, progress)
        _write(stage.folder, Proof(validation, prompts, tuple(proofs), peaks.outliers()))
        return _read(stage.finish())


def validate_engines(
    folders: Sequence[EngineFolder],
    original: Callable[..., LogitsSource],
    held_out: Sequence[HeldOut],
    calibration: TokenSamples | None,
    progress: Progress,
    asked: EngineSettings | None = None,
) -> dict[str, ValidationResult]:
    """What each engine, in its default formats or those `asked` for, gives on held-out data, if any.

    `original` opens the source model, with the `progress` of `OriginalLogits`.
    """
    if not held_out:
        return {}
    tokens = longest_window(held_out)
    with ExitStack() as stack:
        executors = {
            folder.target: stack.enter_context(closing(load_default(folder, tokens, asked)))
            for folder in folders
        }
        return compare_engines(
            original(progress=progress),
            {target: ExecutorLogits(executor) for target, executor in executors.items()},
            held_out,
            calibration=calibration,
            progress=progress,
        )


def _record(checkpoint: Path, golden: Sequence[Sequence[int]], streamed: bool) -> tuple[GoldenPrompt, ...]:
    folder = EngineFolder("checkpoint", REFERENCE, checkpoint, checkpoint, streamed=streamed)
    with closing(_load_reference(folder, golden, "float32")) as executor:
        return record_golden(executor, golden, continuation=_CONTINUATION)


def _prove_reference(folder: EngineFolder) -> EngineProof:
    """The reference engine's proof; with quantized inputs, cache or experts at a tolerance that is measured.

    What bfloat16 rounds away can turn an input into the next code: a whole
    step, and as large a difference as the quantization itself makes. It can
    send a token to another expert, too.
    """
    checkpoint = open_checkpoint(folder.checkpoint)
    has_codes = any(scheme.activation is not None for scheme in checkpoint.schemes.values())
    if folder.kv_cache is not None or has_codes or checkpoint.plan.has_experts:
        return prove_engine(folder, (folder.kv_cache or "bfloat16",))
    sequences = [prompt.token_ids for prompt in folder.golden]
    with closing(_load_reference(folder, sequences, "bfloat16")) as executor:
        report = require_golden(executor, folder.golden, DEFAULT_TOLERANCE)
        info = executor.info
    proof = GoldenProof(
        len(folder.golden), report.kl_mean, report.kl_max, report.top1_agreement, DEFAULT_TOLERANCE
    )
    return EngineProof(Engine(REFERENCE, info.compute, info.kv_cache, dict(info.kernels), proof), ())


def _load_reference(
    folder: EngineFolder, sequences: Sequence[Sequence[int]], compute: Literal["bfloat16", "float32"]
) -> Executor:
    """The reference engine, with a cache for the longest of `sequences` and its continuation."""
    opened = open_engine(folder)
    tokens = max(map(len, sequences)) + _CONTINUATION
    return opened.load(KVCacheConfig(-(-tokens // _BLOCK), _BLOCK, compute), ExecutorOptions(compute))


def _write(folder: Path, proof: Proof) -> None:
    write_golden(folder, proof.golden)
    for proven in proof.engines:
        if proven.modes:
            write_proofs(folder / proofs_file(proven.engine.target), proven.modes)
    write_atomic(folder / "validation.json", _VALIDATION.dump_json(dict(proof.validation)))
    write_atomic(folder / "outliers.json", _OUTLIERS.dump_json(proof.outliers))
    write_atomic(folder / "engines.json", _ENGINES.dump_json(tuple(p.engine for p in proof.engines)))


def _read(folder: Path) -> Proof:
    engines = _ENGINES.validate_json((folder / "engines.json").read_bytes())
    proofs = []
    for engine in engines:
        path = folder / proofs_file(engine.target)
        proofs.append(EngineProof(engine, read_proofs(path) if path.exists() else ()))
    validation = _VALIDATION.validate_json((folder / "validation.json").read_bytes())
    outliers = _OUTLIERS.validate_json((folder / "outliers.json").read_bytes())
    return Proof(validation, read_golden(folder), tuple(proofs), outliers)
