"""An engine's proof, repeated: all golden prompts, in the formats that it serves by default."""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.errors import ArtifactError
from gristmill.runtime.executors.load import open_engine
from gristmill.runtime.golden import golden_cache, golden_tolerance, require_golden
from gristmill.runtime.settings import EngineSettings

__all__ = ["RepeatedProof", "prove_again"]


@dataclass(frozen=True, slots=True)
class RepeatedProof:
    """What an engine gave now, and the KL in nats that no row may exceed."""

    compute: str
    kv_cache: str
    prompts: int
    kl_mean: float
    kl_max: float
    top1_agreement: float
    tolerance: float


def prove_again(folder: EngineFolder) -> RepeatedProof:
    """Run every golden prompt. Raises IntegrityError with the difference if the engine does not pass."""
    if not folder.golden:
        raise ArtifactError(f"artifact {folder.name} has no golden prompts", hint="build it again")
    opened = open_engine(folder)
    settings, options = opened.modes.choose(EngineSettings(), folder.kv_cache)
    executor = opened.load(golden_cache(folder.golden, settings.kv_dtype), options)
    try:
        info = executor.info
        tolerance = golden_tolerance(folder.tolerances, info)
        report = require_golden(executor, folder.golden, tolerance)
    finally:
        executor.close()
    return RepeatedProof(
        info.compute,
        info.kv_cache,
        len(report.prompts),
        report.kl_mean,
        report.kl_max,
        report.top1_agreement,
        tolerance,
    )
