"""The validate stage: the written checkpoint, on the engine that serves it, against the original model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from gristmill.artifacts.engines import REFERENCE
from gristmill.artifacts.golden import read_golden, write_golden
from gristmill.artifacts.manifest import Engine, GoldenProof
from gristmill.calibration.samples import TokenSamples
from gristmill.pipeline.checkpoint import WrittenCheckpoint
from gristmill.pipeline.progress import Progress
from gristmill.pipeline.stages import StageCache, code_version, stage_key
from gristmill.pipeline.validate.compare import compare_models
from gristmill.pipeline.validate.data import HeldOut
from gristmill.pipeline.validate.logits import ExecutorLogits, LogitsSource
from gristmill.pipeline.validate.result import ValidationResult
from gristmill.runtime.engine_folder import EngineFolder, GoldenPrompt
from gristmill.runtime.executors.base import Executor, KVCacheConfig
from gristmill.runtime.executors.load import open_engine
from gristmill.runtime.files import write_atomic
from gristmill.runtime.golden import record_golden, require_golden
from gristmill.runtime.settings import ExecutorOptions

__all__ = ["GOLDEN_TOLERANCE", "Proof", "prove"]

GOLDEN_TOLERANCE = 0.02
"""Largest KL in nats at which an engine passes; bfloat16 noise on the demo model is a tenth of it."""

_COMPUTE: Literal["bfloat16"] = "bfloat16"
_BLOCK = 16
_CONTINUATION = 16
_CODE = (
    "gristmill.calibration.walk",
    "gristmill.pipeline.validate",
    "gristmill.pipeline.prove",
    "gristmill.runtime.checkpoint",
    "gristmill.runtime.executors",
    "gristmill.runtime.formats",
    "gristmill.runtime.golden",
)
_VALIDATION = TypeAdapter(ValidationResult | None)
_ENGINE = TypeAdapter(Engine)


@dataclass(frozen=True, slots=True, eq=False)
class Proof:
    """What was measured on an engine: validation (None without held-out data), golden prompts, self-test."""

    validation: ValidationResult | None
    golden: tuple[GoldenPrompt, ...]
    engine: Engine


def prove(
    written: WrittenCheckpoint,
    original: Callable[[], LogitsSource],
    held_out: Sequence[HeldOut],
    calibration: TokenSamples | None,
    golden: Sequence[Sequence[int]],
    inputs: Mapping[str, Any],
    stages: StageCache,
    progress: Progress,
) -> Proof:
    """Validate and record golden prompts, or take what an earlier build of the same inputs measured.

    `original` opens the source model; `inputs` is what, beside the checkpoint and
    the data, determines the result. Golden logits come from float32 compute, and the
    engine that serves must reproduce them. Gates are not judged here.
    """
    tokens = [(entry.name, entry.samples.digest) for entry in held_out]
    seen = None if calibration is None else calibration.digest
    key = stage_key(
        "validate",
        {**inputs, "checkpoint": written.key, "held_out": tokens, "golden": golden, "calibration": seen},
        code_version(_CODE),
    )
    if (done := stages.finished("validate", key)) is not None:
        return _read(done)
    with stages.open("validate", key) as stage:
        progress.stage("validate", sum(entry.samples.tokens for entry in held_out), "tokens")
        prompts = _record(written.folder, golden)
        executor = _load(
            written.folder, [*golden, *(w for entry in held_out for w in entry.windows)], _COMPUTE
        )
        engine = _self_test(executor, prompts)
        validation = None
        if held_out:
            validation = compare_models(
                original(),
                ExecutorLogits(executor),
                held_out,
                calibration=calibration,
                on_tokens=progress.advance,
            )
        executor.close()
        _write(stage.folder, Proof(validation, prompts, engine))
        return _read(stage.finish())


def _record(checkpoint: Path, golden: Sequence[Sequence[int]]) -> tuple[GoldenPrompt, ...]:
    executor = _load(checkpoint, golden, "float32")
    prompts = record_golden(executor, golden, continuation=_CONTINUATION)
    executor.close()
    return prompts


def _self_test(executor: Executor, prompts: tuple[GoldenPrompt, ...]) -> Engine:
    report = require_golden(executor, prompts, GOLDEN_TOLERANCE)
    proof = GoldenProof(len(prompts), report.kl_mean, report.kl_max, report.top1_agreement, GOLDEN_TOLERANCE)
    info = executor.info
    return Engine(REFERENCE, info.compute, info.kv_cache, dict(info.kernels), proof)


def _load(
    checkpoint: Path, sequences: Sequence[Sequence[int]], compute: Literal["bfloat16", "float32"]
) -> Executor:
    """The reference engine, with a cache for the longest of `sequences` and its continuation."""
    opened = open_engine(EngineFolder("checkpoint", REFERENCE, checkpoint, checkpoint))
    tokens = max(map(len, sequences)) + _CONTINUATION
    return opened.load(KVCacheConfig(-(-tokens // _BLOCK), _BLOCK, compute), ExecutorOptions(compute))


def _write(folder: Path, proof: Proof) -> None:
    write_golden(folder, proof.golden)
    write_atomic(folder / "validation.json", _VALIDATION.dump_json(proof.validation))
    write_atomic(folder / "engine.json", _ENGINE.dump_json(proof.engine))


def _read(folder: Path) -> Proof:
    return Proof(
        _VALIDATION.validate_json((folder / "validation.json").read_bytes()),
        read_golden(folder),
        _ENGINE.validate_json((folder / "engine.json").read_bytes()),
    )
