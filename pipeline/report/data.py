"""Everything that a report shows of one artifact, gathered from the artifact and its store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gristmill.artifacts.artifact import Artifact
from gristmill.artifacts.engines import GOLDEN_FOLDER
from gristmill.artifacts.inspect import inspection
from gristmill.artifacts.proofs import ModeProof, proofs_file, read_proofs
from gristmill.artifacts.reading import read_bounded
from gristmill.artifacts.record import BuildRecord
from gristmill.artifacts.store import Store
from gristmill.artifacts.verify import require_contents
from gristmill.pipeline.checkpoint import CHECKPOINT
from gristmill.pipeline.report.builds import Builds, comparable_builds, measured_engine
from gristmill.pipeline.report.evidence import (
    DataSet,
    LayerErrors,
    Measured,
    TaskScore,
    read_data_mix,
    read_layer_errors,
    read_measured,
    read_outliers,
    read_widths,
)
from gristmill.pipeline.report.excerpts import Excerpt, excerpt
from gristmill.pipeline.report.mix import DataMix, mix_warnings
from gristmill.pipeline.search.widths import WidthChoice
from gristmill.pipeline.validate.outliers import LayerOutliers
from gristmill.runtime.tokenizer import load_tokenizer

__all__ = ["ReportData", "collect", "report_json"]

_MAX_RECIPE_BYTES = 1 << 20
_SHOWN = ("recipe.yaml", "report/", f"{CHECKPOINT}/tokenizer")


@dataclass(frozen=True, slots=True, eq=False)
class ReportData:
    """What is known of an artifact.

    `engine` is the one that its quality is told by, None where nothing was validated; `data` maps engines
    to their data sets, `tasks` those that ran tasks to their scores by task, `modes` to their proofs in
    each number format. `missing` says, a sentence each,
    what can't be shown and why.
    """

    artifact: Artifact
    engine: str | None
    data: Mapping[str, tuple[DataSet, ...]]
    tasks: Mapping[str, Mapping[str, TaskScore]]
    modes: Mapping[str, tuple[ModeProof, ...]]
    builds: Builds
    layers: LayerErrors | None
    widths: WidthChoice | None
    outliers: tuple[LayerOutliers, ...]
    mix: DataMix | None
    worst: tuple[Excerpt, ...]
    record: BuildRecord | None
    recipe: str
    missing: tuple[str, ...]

    @property
    def passed(self) -> bool | None:
        """Whether all gates hold; None without gates."""
        gates = self.artifact.manifest.gates
        return all(gate.passed for gate in gates) if gates else None

    @property
    def known_errors(self) -> Mapping[str, float]:
        """By linear: of all where the artifact carries them, else of the worst, which the manifest names."""
        if self.layers is not None:
            return self.layers.errors
        return {layer.linear: layer.error for layer in self.artifact.manifest.layer_errors}


def collect(store: Store, artifact: Artifact) -> ReportData:
    """Gather a report of `artifact`; `store` knows how it was built and what to compare it with.

    Reads no weight. Raises ArtifactError and IntegrityError for a damaged artifact, StorageError.
    """
    require_contents(artifact, [path for path in artifact.manifest.files if path.startswith(_SHOWN)])
    engine = measured_engine(artifact.manifest)
    measured = {name: read_measured(artifact, name) for name in artifact.manifest.validation}
    layers, mix, record = read_layer_errors(artifact), read_data_mix(artifact), store.record(artifact)
    return ReportData(
        artifact=artifact,
        engine=engine,
        data={name: found.data for name, found in measured.items() if found is not None},
        tasks={name: found.tasks for name, found in measured.items() if found is not None and found.tasks},
        modes=_modes(artifact),
        builds=comparable_builds(store, artifact),
        layers=layers,
        widths=read_widths(artifact),
        outliers=read_outliers(artifact),
        mix=mix,
        worst=_excerpts(artifact, measured.get(engine) if engine else None),
        record=record,
        recipe=read_bounded(artifact.folder / "recipe.yaml", _MAX_RECIPE_BYTES).decode(errors="replace"),
        missing=tuple(_missing(artifact, layers, mix, record)),
    )


def report_json(data: ReportData) -> dict[str, Any]:
    """`report --json`: what `inspect --json` holds, and beside it all that the page shows."""
    return {
        **inspection(data.artifact),
        "passed": data.passed,
        "gates": [asdict(gate) for gate in data.artifact.manifest.gates],
        "measured_on": data.engine,
        "data": {engine: [asdict(row) for row in rows] for engine, rows in data.data.items()},
        "tasks": {
            engine: {task: asdict(score) for task, score in scores.items()}
            for engine, scores in data.tasks.items()
        },
        "modes": {engine: [asdict(mode) for mode in modes] for engine, modes in data.modes.items()},
        "builds": asdict(data.builds),
        "layers": asdict(data.layers) if data.layers else None,
        "widths": asdict(data.widths) if data.widths else None,
        "outliers": [asdict(layer) for layer in data.outliers],
        "mix": {**asdict(data.mix), "warnings": mix_warnings(data.mix)} if data.mix else None,
        "worst": [asdict(found) for found in data.worst],
        "record": asdict(data.record) if data.record else None,
        "recipe": data.recipe,
        "missing": data.missing,
    }


def _excerpts(artifact: Artifact, measured: Measured | None) -> tuple[Excerpt, ...]:
    if measured is None or not measured.worst:
        return ()
    tokenizer = load_tokenizer(artifact.folder / CHECKPOINT)
    return tuple(excerpt(passage, tokenizer) for passage in measured.worst)


def _modes(artifact: Artifact) -> dict[str, tuple[ModeProof, ...]]:
    paths = {
        engine.target: f"{GOLDEN_FOLDER}/{proofs_file(engine.target)}" for engine in artifact.manifest.engines
    }
    return {
        target: read_proofs(artifact.folder / path)
        for target, path in paths.items()
        if path in artifact.manifest.files
    }


def _missing(
    artifact: Artifact, layers: LayerErrors | None, mix: DataMix | None, record: BuildRecord | None
) -> Iterator[str]:
    """A sentence for each part that is left out, in the order of the page."""
    manifest = artifact.manifest
    if not manifest.validation:
        yield "Quality: nothing was validated, the recipe names no held-out data."
    elif not manifest.gates:
        yield "A verdict: the recipe sets no gates."
    if layers is None and manifest.schemes:
        kept = (
            f"only the {len(manifest.layer_errors)} worst are known"
            if manifest.layer_errors
            else "none is known"
        )
        yield f"Errors of all layers: the artifact does not carry them, {kept}."
    if mix is None:
        yield "Calibration and validation data: the artifact does not describe them."
    if record is None:
        yield "Time and memory: this store has no build record, the artifact was built elsewhere."
    elif not record.stages:
        yield "Time and memory by stage: the build record does not have them."
