"""Only builds of one model, measured on one text, are compared; the others are counted."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gristmill.artifacts import manifest as m
from gristmill.artifacts.artifact import Artifact, open_artifact
from gristmill.artifacts.manifest_bytes import MANIFEST_FILE
from gristmill.artifacts.store import Store
from gristmill.pipeline.report.builds import comparable_builds, measured_engine

GOLDEN = Path(__file__).parents[2] / "golden" / "artifact_v1"


def measured(kl: float, base: float = 20.0) -> dict[str, m.EngineValidation]:
    return {
        "reference": m.EngineValidation(m.Perplexity(base, base + 1), m.KlDivergence(kl, 1.0), 0.8, {}, 0.0)
    }


def commit(
    store: Store,
    name: str,
    validation: dict[str, m.EngineValidation],
    *,
    weights: int = 0,
    model: str = "0" * 64,
) -> Artifact:
    sample = open_artifact(GOLDEN).manifest
    base = m.SourceModel("model", None, f"sha256:{model}")
    manifest = replace(
        sample,
        name=name,
        files={},
        lineage=replace(sample.lineage, base_model=base),
        validation=validation,
        gates=(),
    )
    with store.staging() as folder:
        shutil.copytree(GOLDEN, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST_FILE))
        (folder / "checkpoint" / "more.bin").write_bytes(bytes(weights + 1))
        return store.commit(folder, manifest)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_builds_are_in_order_of_size_and_the_best_are_marked(store: Store) -> None:
    commit(store, "small", measured(0.3))
    present = commit(store, "present", measured(0.1), weights=100)
    commit(store, "worse", measured(0.2), weights=200)
    points = comparable_builds(store, present).points
    assert [(point.label, point.best, point.present) for point in points] == [
        ("small:latest", True, False),
        ("present:latest", True, True),
        ("worse:latest", False, False),
    ]


def test_what_can_not_be_compared_is_counted(store: Store) -> None:
    present = commit(store, "present", measured(0.1))
    commit(store, "other-model", measured(0.01), model="1" * 64)
    commit(store, "other-text", measured(0.01, base=25.0))
    commit(store, "unmeasured", {})
    damaged = commit(store, "damaged", measured(0.01), weights=7)
    damaged.folder.chmod(0o755)
    (damaged.folder / "checkpoint").chmod(0o755)
    (damaged.folder / "checkpoint" / "more.bin").unlink()
    found = comparable_builds(store, present)
    assert [point.label for point in found.points] == ["present:latest"]
    assert (found.other_models, found.other_text, found.unmeasured, found.damaged) == (1, 1, 1, 1)


def test_two_tags_of_one_build_are_one_point(store: Store) -> None:
    present = commit(store, "present", measured(0.1))
    with store.staging() as folder:
        shutil.copytree(
            present.folder, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST_FILE)
        )
        store.commit(folder, replace(present.manifest, files={}), tag="again")
    assert len(comparable_builds(store, present).points) == 1


def test_an_artifact_needs_no_store(store: Store, tmp_path: Path) -> None:
    present = commit(store, "present", measured(0.1))
    alone = comparable_builds(Store(tmp_path / "none"), present)
    assert [point.label for point in alone.points] == ["present:latest"]


def test_the_engine_with_the_gates_speaks_for_the_artifact() -> None:
    manifest = open_artifact(GOLDEN).manifest
    result = measured(0.1)["reference"]
    both = replace(manifest, validation={"native-x86": result, "reference": result}, gates=())
    assert measured_engine(both) == "native-x86"
    gated = replace(both, gates=(m.GateResult("reference", "kl_mean", "< 1", 0.1, True),))
    assert measured_engine(gated) == "reference"
    assert measured_engine(replace(both, validation={})) is None
