"""From an artifact to what the runtime loads: one engine's folder, checked."""

from __future__ import annotations

from typing import cast, get_args

from gristmill.artifacts.artifact import Artifact
from gristmill.artifacts.golden import PROMPTS_FILE, read_golden
from gristmill.artifacts.manifest import Engine
from gristmill.artifacts.proofs import proofs_file, read_proofs
from gristmill.artifacts.verify import require_contents, require_verified
from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.errors import ArtifactError
from gristmill.runtime.executors.base import KVDtype

__all__ = ["ENGINES_FOLDER", "GOLDEN_FOLDER", "REFERENCE", "engine_targets", "open_engine", "own_kv_cache"]

REFERENCE = "reference"
GOLDEN_FOLDER = "golden"
ENGINES_FOLDER = "engines"

_SMALL = 4 << 20  # hashed at every start, in milliseconds: plans, headers, proofs, not weights


def open_engine(artifact: Artifact, target: str = REFERENCE, *, full: bool = False) -> EngineFolder:
    """The engine for `target`, with the artifact's golden prompts and the engine's tolerances.

    Presence, kind and size of every file are compared with the manifest, and
    the contents of the small files of the engine; `full` compares all contents.
    A native engine's small files hold a stamp of its large one. Raises
    ArtifactError if the artifact has no such engine, IntegrityError if it is
    damaged.
    """
    require_verified(artifact, full=full)
    engines = {engine.target: engine for engine in artifact.manifest.engines}
    if target not in engines:
        raise ArtifactError(
            f"artifact {artifact.name} has no engine {target}",
            found=", ".join(engines) or "none",
            hint=f"`gristmill compile {artifact.name} --target {target}` adds it",
        )
    if not full:
        require_contents(artifact, _small_files(artifact, target))
    checkpoint = artifact.folder / "checkpoint"
    has_golden = f"{GOLDEN_FOLDER}/{PROMPTS_FILE}" in artifact.manifest.files
    return EngineFolder(
        name=artifact.name,
        target=target,
        path=checkpoint if target == REFERENCE else artifact.folder / ENGINES_FOLDER / target,
        checkpoint=checkpoint,
        digest=artifact.digest,
        golden=read_golden(artifact.folder / GOLDEN_FOLDER) if has_golden else (),
        tolerances=_tolerances(artifact, engines[target]),
        kv_cache=own_kv_cache(engines[target].kv_cache),
    )


def own_kv_cache(recorded: str) -> KVDtype | None:
    """The format of keys and values that an engine was made for; None for bfloat16, which none chose.

    Raises ArtifactError for a format that is not known here.
    """
    for dtype in get_args(KVDtype):
        if dtype == recorded:
            return None if dtype == "bfloat16" else cast(KVDtype, dtype)
    raise ArtifactError("format of keys and values", found=recorded, expected=" or ".join(get_args(KVDtype)))


def engine_targets(artifact: Artifact) -> tuple[str, ...]:
    """The targets of all engines that the artifact carries."""
    return tuple(engine.target for engine in artifact.manifest.engines)


def _small_files(artifact: Artifact, target: str) -> list[str]:
    own = (f"{ENGINES_FOLDER}/{target}/", f"{GOLDEN_FOLDER}/{proofs_file(target)}")
    files = artifact.manifest.files.items()
    return [path for path, entry in files if path.startswith(own) and entry.size <= _SMALL]


def _tolerances(artifact: Artifact, engine: Engine) -> dict[tuple[str, str], float]:
    """Those of all modes, where the engine has a file of them; always that of its default mode."""
    found: dict[tuple[str, str], float] = {}
    path = f"{GOLDEN_FOLDER}/{proofs_file(engine.target)}"
    if path in artifact.manifest.files:
        proofs = read_proofs(artifact.folder / path)
        found = {(proof.compute, proof.kv_cache): proof.tolerance for proof in proofs}
    if engine.golden is not None:
        found[engine.compute, engine.kv_cache] = engine.golden.tolerance
    return found
