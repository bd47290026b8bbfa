"""`compile`: one more engine or export for an artifact, as a new artifact whose parent is the old one."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gristmill.artifacts.artifact import Artifact
from gristmill.artifacts.blobs import link_or_copy
from gristmill.artifacts.engines import GOLDEN_FOLDER, REFERENCE, engine_targets, own_kv_cache
from gristmill.artifacts.golden import read_golden
from gristmill.artifacts.manifest import Manifest
from gristmill.artifacts.proofs import proofs_file, write_proofs
from gristmill.artifacts.refs import DEFAULT_TAG
from gristmill.artifacts.store import Store
from gristmill.artifacts.verify import require_verified
from gristmill.pipeline.checkpoint import CHECKPOINT
from gristmill.pipeline.compile.revalidate import Revalidation, revalidate
from gristmill.pipeline.compile.stage import StepProgress, require_runnable
from gristmill.pipeline.compile.target import Target
from gristmill.pipeline.compile.targets import find_target
from gristmill.pipeline.engine_proof import EngineProof, prove_engine
from gristmill.pipeline.environment import build_threads, using_threads
from gristmill.pipeline.package import engine_validation, gate_rows, write_report
from gristmill.pipeline.progress import Progress, SilentProgress
from gristmill.pipeline.record import StageClock
from gristmill.pipeline.stages import StageCache
from gristmill.pipeline.validate.gates import require_gates
from gristmill.pipeline.validate.origin import known_places
from gristmill.runtime.checkpoint import open_checkpoint
from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.errors import ArtifactError, BusyError
from gristmill.runtime.files import storage_errors

__all__ = ["compile_artifact"]


@dataclass(frozen=True, slots=True)
class _Made:
    """What was added: an engine has a proof and, where the data was at hand, a validation."""

    proof: EngineProof | None = None
    measured: Revalidation | None = None


def compile_artifact(
    store: Store,
    artifact: Artifact,
    target: str,
    *,
    progress: Progress | None = None,
    recipe_folder: Path | None = None,
) -> Artifact:
    """Add `target` to an artifact: a new digest with the old one as parent, to which the tag moves.

    The engine's files are proved with all golden prompts in each of its number
    formats, and validated with the recipe's held-out data and gates where that
    is found: in `recipe_folder`, else where the artifact was built. Unchanged
    files are shared. The same input gives the same digest; until the new
    artifact is whole, the store holds what it held. An artifact that has the
    target is returned as it is.

    Raises UnsupportedError for a target that is not available or can't be run
    here, IntegrityError for a damaged artifact or an engine that differs,
    GateError, BusyError if the tag has moved meanwhile, StorageError.
    """
    tell = progress or SilentProgress()
    if target == REFERENCE or _has(artifact, find_target(target)):
        tell.note(f"{artifact.name} has {target} already: nothing to do")
        return artifact
    chosen = find_target(target)
    if chosen.kind == "engine":
        require_runnable([target])
    tag = _tag_to_move(store, artifact)
    require_verified(artifact)
    store.layout.create()
    clock = StageClock(StageCache(store.layout.stages))
    with using_threads(build_threads()), store.staging() as folder:
        with clock.stage("compile"):
            _share(artifact, folder, in_store=artifact.folder.parent == store.layout.artifacts)
            chosen.write(artifact.folder / CHECKPOINT, folder / chosen.place, StepProgress(tell))
        made = _Made()
        if chosen.kind == "engine":
            with clock.stage("validate"):
                made = _prove(store, artifact, folder, chosen, recipe_folder, tell)
        manifest = _manifest(artifact, made)
        if store.tagged(artifact.name, tag) not in (None, artifact.digest):
            raise BusyError(
                f"{artifact.name}:{tag} has moved while {target} was compiled", hint="compile again"
            )
        record = clock.record(known_places(store, artifact, recipe_folder))
        return store.commit(folder, manifest, tag=tag, name=artifact.name, record=record)


def _has(artifact: Artifact, target: Target) -> bool:
    if target.kind == "engine":
        return target.name in engine_targets(artifact)
    return artifact.manifest.size_of(f"{target.place}/") > 0 or _own_format(artifact) == target.name


def _own_format(artifact: Artifact) -> str | None:
    """The format of the artifact's checkpoint; None where nothing is quantized."""
    config = open_checkpoint(artifact.folder / CHECKPOINT).config
    block = config.get("quantization_config")
    return str(block.get("quant_method")) if isinstance(block, Mapping) else None


def _tag_to_move(store: Store, artifact: Artifact) -> str:
    """The tag that the REF named; without one, `latest`, unless that is another artifact's."""
    if artifact.tag is not None:
        return artifact.tag
    if (found := store.tagged(artifact.name, DEFAULT_TAG)) not in (None, artifact.digest):
        raise ArtifactError(
            f"which tag should move to the new {artifact.name}?",
            found=f"no tag in the REF, and {artifact.name}:{DEFAULT_TAG} points to {found}",
            hint=f"name it: {artifact.name}:TAG",
        )
    return DEFAULT_TAG


def _share(artifact: Artifact, folder: Path, *, in_store: bool) -> None:
    """All files of the artifact again in `folder`.

    Hard links from the store, whose files are read-only for good; copies of a
    folder elsewhere, which stays its owner's to change.
    """
    for path in artifact.manifest.files:
        target = folder / path
        with storage_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            if in_store:
                link_or_copy(artifact.folder / path, target)
            else:
                shutil.copyfile(artifact.folder / path, target)


def _prove(
    store: Store, artifact: Artifact, folder: Path, target: Target, recipe_folder: Path | None, tell: Progress
) -> _Made:
    golden = read_golden(folder / GOLDEN_FOLDER)
    reference = next(entry for entry in artifact.manifest.engines if entry.target == REFERENCE)
    engine = EngineFolder(
        artifact.name,
        target.name,
        folder / target.place,
        folder / CHECKPOINT,
        golden=golden,
        kv_cache=own_kv_cache(reference.kv_cache),
    )
    proof = prove_engine(engine)
    proven = proof.engine.golden
    assert proven is not None, "prove_engine runs the golden prompts"
    tell.note(
        f"{target.name}: {proven.prompts} golden prompts, largest KL {proven.kl_max:.2g} nats, "
        f"{proven.tolerance:.2g} allowed from now on"
    )
    write_proofs(folder / GOLDEN_FOLDER / proofs_file(target.name), proof.modes)
    measured = revalidate(store, artifact, engine, recipe_folder, tell)
    if measured is not None:
        errors = {layer.linear: layer.error for layer in artifact.manifest.layer_errors}
        require_gates(measured.gates, errors)
        write_report(folder, {target.name: measured.result})
    return _Made(proof, measured)


def _manifest(artifact: Artifact, made: _Made) -> Manifest:
    """The parent's manifest with what was added, its files still to be listed."""
    manifest = artifact.manifest
    lineage = replace(manifest.lineage, parent=artifact.digest)
    manifest = replace(manifest, files={}, lineage=lineage)
    if made.proof is None:
        return manifest
    entry = made.proof.engine
    engines = sorted((*manifest.engines, entry), key=lambda engine: engine.target)
    manifest = replace(manifest, engines=tuple(engines))
    if made.measured is None:
        return manifest
    validation = {**manifest.validation, entry.target: engine_validation(made.measured.result)}
    gates = (*manifest.gates, *gate_rows(entry.target, made.measured.gates))
    return replace(manifest, validation=validation, gates=gates)
