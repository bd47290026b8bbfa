"""Proofs of an engine's number formats: written once, read strictly, used as tolerances."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.artifacts.engines import engine_targets, open_engine
from gristmill.artifacts.proofs import ModeProof, proofs_file, read_proofs, write_proofs
from gristmill.artifacts.store import Store
from gristmill.runtime.errors import ArtifactError, IntegrityError

EXACT = ModeProof("bfloat16", "bfloat16", 0.001, 0.002, 1.0, 0.02)
ROUGH = ModeProof("int8", "int4", 0.03, 0.05, 0.75, 0.2)


def test_proofs_come_back_sorted(tmp_path: Path) -> None:
    path = tmp_path / proofs_file("native-x86")
    write_proofs(path, [ROUGH, EXACT])
    assert read_proofs(path) == (EXACT, ROUGH)


@pytest.mark.parametrize(
    "change",
    [
        (b'"tolerance":0.2', b'"tolerance":-0.2'),
        (b'"int8"', b'"bfloat16"'),
        (b"}]", b"} ]"),
        (b'"schema_version":1', b'"schema_version":2'),
    ],
)
def test_other_proofs_are_refused(tmp_path: Path, change: tuple[bytes, bytes]) -> None:
    path = tmp_path / "proofs.json"
    write_proofs(path, [ROUGH, EXACT])
    data = path.read_bytes()
    assert change[0] in data
    path.write_bytes(data.replace(*change))
    if change[1] == b'"bfloat16"':  # still sorted, so only a repeated mode is wrong
        path.write_bytes(path.read_bytes().replace(b'"int4"', b'"bfloat16"'))
    with pytest.raises(ArtifactError, match=r"proofs\.json"):
        read_proofs(path)


def with_proofs(store: Store, sample_folder: Path, sample_manifest) -> None:
    with store.staging() as folder:
        for path in sample_folder.rglob("*"):
            if path.is_file() and path.name != "manifest.json":
                target = folder / path.relative_to(sample_folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
        write_proofs(folder / "golden" / proofs_file("native-x86"), [ROUGH, EXACT])
        store.commit(folder, sample_manifest)


def test_an_engine_comes_with_the_tolerance_of_each_of_its_modes(
    store: Store, sample_folder: Path, sample_manifest
) -> None:
    with_proofs(store, sample_folder, sample_manifest)
    artifact = store.resolve("sample")
    assert engine_targets(artifact) == ("native-x86", "reference")
    tolerances = open_engine(artifact, "native-x86").tolerances
    assert tolerances["bfloat16", "bfloat16"] == 0.02
    assert tolerances["int8", "int4"] == 0.2
    recorded = {engine.target: engine for engine in artifact.manifest.engines}["reference"]
    assert recorded.golden is not None
    assert open_engine(artifact).tolerances == {
        (recorded.compute, recorded.kv_cache): recorded.golden.tolerance
    }


def test_a_changed_small_file_of_an_engine_is_found_without_hashing_everything(
    store: Store, sample_folder: Path, sample_manifest
) -> None:
    with_proofs(store, sample_folder, sample_manifest)
    artifact = store.resolve("sample")
    path = artifact.folder / "golden" / proofs_file("native-x86")
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b"0.2,", b"0.9,").replace(b"0.2}", b"0.9}"))
    with pytest.raises(IntegrityError, match=r"golden/native-x86\.json: sha256"):
        open_engine(artifact, "native-x86")
    assert open_engine(artifact).target == "reference"
