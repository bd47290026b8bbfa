"""A build keeps in its artifact what a report needs, and an artifact without it is read all the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gristmill.artifacts.artifact import Artifact, open_artifact
from gristmill.artifacts.record import PEAK_AFTER
from gristmill.artifacts.store import Store
from gristmill.pipeline.report.evidence import (
    TaskScore,
    read_data_mix,
    read_layer_errors,
    read_measured,
    read_outliers,
    read_widths,
)
from gristmill.pipeline.validate.differences import paired_difference
from gristmill.pipeline.validate.tasks.outcome import TaskOutcome
from gristmill.pipeline.validate.tasks.task import Measured as Answer
from gristmill.pipeline.validate.tasks.task import TaskResult
from gristmill.runtime.errors import ArtifactError
from tests.command_line import CommandLine

GOLDEN = Path(__file__).parents[2] / "golden" / "artifact_v1"


@pytest.fixture(scope="module")
def artifact(built: CommandLine) -> Artifact:
    return Store(built.store).resolve("tiny")


def test_every_quantized_linear_has_an_error(artifact: Artifact) -> None:
    layers = read_layer_errors(artifact)
    assert layers is not None
    assert layers.measure == "output"
    assert set(layers.errors) == {name for group in artifact.manifest.schemes for name in group.linears}
    worst = artifact.manifest.layer_errors[0]
    assert layers.errors[worst.linear] == worst.error == max(layers.errors.values())


def test_both_sides_of_the_data_are_described(artifact: Artifact) -> None:
    mix = read_data_mix(artifact)
    assert mix is not None
    assert mix.calibration is not None
    assert mix.validation is not None
    assert artifact.manifest.lineage.calibration is not None
    assert mix.calibration.tokens == artifact.manifest.lineage.calibration.tokens
    assert [source.name for source in mix.validation.sources] == ["heldout.jsonl"]
    assert sum(mix.calibration.sources[0].octaves) == mix.calibration.sources[0].prompts


def test_the_worst_passages_are_kept_for_every_engine(artifact: Artifact) -> None:
    for engine in ("reference", "native-x86"):
        measured = read_measured(artifact, engine)
        assert measured is not None
        assert measured.data[0].name == "heldout.jsonl"
        assert measured.worst[0].kl_mean == max(passage.kl_mean for passage in measured.worst) > 0


def test_what_a_build_writes_of_a_task_is_read_back(artifact: Artifact, tmp_path: Path) -> None:
    items = tuple(Answer({"acc": float(value)}, "") for value in (1, 0, 1, 1))
    result = TaskResult("arc_easy", "acc", False, 0.02, ("a", "b", "c", "d"), items)
    lost = paired_difference([1.0] * 4, [1.0, 0.0, 1.0, 1.0])
    outcomes = {"arc_easy": TaskOutcome(result, lost), "arc_challenge": TaskOutcome(result, None)}
    (tmp_path / "report").mkdir()
    written = {"data": [], "tasks": {name: outcome.to_dict() for name, outcome in outcomes.items()}}
    (tmp_path / "report" / "validation-reference.json").write_text(json.dumps(written))
    measured = read_measured(
        Artifact(tmp_path, artifact.manifest, artifact.digest, "tiny", None, 0), "reference"
    )
    assert measured is not None
    assert measured.tasks == {
        "arc_easy": TaskScore("acc", 4, 0, {"acc": 0.75}, lost),
        "arc_challenge": TaskScore("acc", 4, 0, {"acc": 0.75}, None),
    }


def test_the_channels_behind_every_layer_were_looked_at(artifact: Artifact) -> None:
    outliers = read_outliers(artifact)
    assert [layer.layer for layer in outliers] == [0, 1, 2]
    assert all(0 < layer.median <= layer.largest for layer in outliers)


def test_the_record_has_the_memory_after_each_stage(built: CommandLine, artifact: Artifact) -> None:
    record = Store(built.store).record(artifact)
    assert record is not None
    peaks = [record.resources[PEAK_AFTER + stage.stage] for stage in record.stages]
    assert peaks == sorted(peaks)
    assert peaks[-1] <= record.resources["peak_memory_bytes"]


def test_an_older_artifact_has_nothing_to_say() -> None:
    old = open_artifact(GOLDEN)
    assert (read_layer_errors(old), read_data_mix(old), read_measured(old, "reference")) == (None, None, None)
    assert read_outliers(old) == ()


def test_widths_of_before_there_were_group_sizes_are_read(artifact: Artifact, tmp_path: Path) -> None:
    unit = {"linears": ["o"], "losses": [0.1, 0.01], "bits": 8, "promoted_from": None}
    path = tmp_path / "report" / "widths.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"widths": [4, 8], "units": [unit]}))
    files = dict.fromkeys(("report/widths.json",), next(iter(artifact.manifest.files.values())))
    manifest = replace(artifact.manifest, files=files)
    choice = read_widths(Artifact(tmp_path, manifest, artifact.digest, "tiny", None, 0))
    assert choice is not None
    assert choice.counts == "1 sets of linears: 1 at 8 bits"


def test_a_file_that_is_no_evidence_is_refused_by_name(artifact: Artifact, tmp_path: Path) -> None:
    folder = tmp_path / "report"
    folder.mkdir()
    (folder / "validation-reference.json").write_text('{"data": 5}')
    damaged = Artifact(tmp_path, artifact.manifest, artifact.digest, "tiny", None, 0)
    with pytest.raises(ArtifactError, match=r"validation-reference\.json"):
        read_measured(damaged, "reference")
