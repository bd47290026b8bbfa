"""From an artifact to what the runtime loads: one engine's folder, checked."""

from __future__ import annotations

from gristmill.artifacts.artifact import Artifact
from gristmill.artifacts.golden import PROMPTS_FILE, read_golden
from gristmill.artifacts.verify import require_verified
from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.errors import ArtifactError

__all__ = ["GOLDEN_FOLDER", "REFERENCE", "open_engine"]

REFERENCE = "reference"
GOLDEN_FOLDER = "golden"


def open_engine(artifact: Artifact, target: str = REFERENCE, *, full: bool = False) -> EngineFolder:
    """The engine for `target`, with the artifact's golden prompts.

    Presence, kind and size of every file are compared with the manifest;
    `full` compares all contents too. Raises ArtifactError if the artifact has
    no such engine, IntegrityError if it is damaged.
    """
    require_verified(artifact, full=full)
    targets = [engine.target for engine in artifact.manifest.engines]
    if target not in targets:
        raise ArtifactError(
            f"artifact {artifact.name} has no engine {target}",
            found=", ".join(targets) or "none",
            hint=f"`gristmill compile {artifact.name} --target {target}` adds it",
        )
    checkpoint = artifact.folder / "checkpoint"
    has_golden = f"{GOLDEN_FOLDER}/{PROMPTS_FILE}" in artifact.manifest.files
    return EngineFolder(
        name=artifact.name,
        target=target,
        path=checkpoint if target == REFERENCE else artifact.folder / "engines" / target,
        checkpoint=checkpoint,
        digest=artifact.digest,
        golden=read_golden(artifact.folder / GOLDEN_FOLDER) if has_golden else (),
    )
