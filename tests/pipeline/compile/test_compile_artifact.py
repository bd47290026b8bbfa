"""`compile` adds to an artifact: a new digest with a parent, shared files, all of it or nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest

import gristmill
from gristmill.artifacts.artifact import Artifact
from gristmill.artifacts.engines import open_engine
from gristmill.artifacts.inspect import inspection
from gristmill.artifacts.proofs import read_proofs
from gristmill.artifacts.store import Store
from gristmill.pipeline.compile import run
from gristmill.pipeline.compile.run import compile_artifact
from gristmill.pipeline.compile.target import Target
from gristmill.pipeline.compile.targets import TARGETS, find_target
from gristmill.runtime.checkpoint import open_checkpoint
from gristmill.runtime.errors import ArtifactError, BusyError, IntegrityError, StorageError, UnsupportedError
from gristmill.runtime.llm import load_engine
from gristmill.runtime.proof import prove_again
from gristmill.runtime.settings import EngineSettings
from tests.listener import Listener

NATIVE = "native-x86"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    (folder / "heldout.txt").write_text("The mill grinds what the river brings, day after day. " * 60)
    copytree(tiny_llama, folder / "model")
    path = folder / "recipe.yaml"
    path.write_text(
        "name: tiny\nmodel: model\n"
        "quantize: {scheme: W4A16_ASYM, method: rtn, group_size: 32}\n"
        "validate:\n  data: [{path: heldout.txt, window: 64, tokens: 256}]\n  gates: {kl_mean: '< 5'}\n"
    )
    return path


@pytest.fixture(scope="module")
def built(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The artifact that each test compiles, in a store that none of them writes to."""
    return gristmill.build(recipe, store=tmp_path_factory.mktemp("built") / "store")


@pytest.fixture(scope="module")
def compiled(
    built: Artifact, recipe: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Store, Artifact, Artifact]:
    """A store with the artifact, and the one that was compiled from it there."""
    store = Store(tmp_path_factory.mktemp("compiled") / "store")
    parent = adopt(store, built)
    return store, parent, compile_artifact(store, parent, NATIVE, recipe_folder=recipe.parent)


def adopt(store: Store, artifact: Artifact) -> Artifact:
    """The artifact in a store of the test's own."""
    with store.staging() as folder:
        copytree(artifact.folder, folder, dirs_exist_ok=True)
        (folder / "manifest.json").unlink()
        return store.commit(folder, replace(artifact.manifest, files={}))


def test_a_compiled_artifact_names_its_parent_and_takes_the_tag(
    compiled: tuple[Store, Artifact, Artifact],
) -> None:
    store, parent, artifact = compiled
    assert artifact.digest != parent.digest
    assert artifact.manifest.lineage.parent == parent.digest
    assert store.resolve("tiny").digest == artifact.digest
    assert store.resolve(f"tiny@{parent.digest}").digest == parent.digest


def test_files_that_do_not_change_are_shared(compiled: tuple[Store, Artifact, Artifact]) -> None:
    _, parent, artifact = compiled
    for path in parent.manifest.files:
        assert (parent.folder / path).samefile(artifact.folder / path), path


def test_the_engine_is_proved_in_every_format_and_validated(
    compiled: tuple[Store, Artifact, Artifact],
) -> None:
    _, _, artifact = compiled
    found = inspection(artifact)
    engines = {engine["target"]: engine for engine in found["engines"]}
    assert engines[NATIVE]["compute"] == "int8"
    assert engines[NATIVE]["golden"]["prompts"] == 4
    assert engines[NATIVE]["golden"]["tolerance"] >= 4 * engines[NATIVE]["golden"]["kl_max"]
    assert set(found["validation"]) == {NATIVE, "reference"}
    assert {gate.engine for gate in artifact.manifest.gates} == {NATIVE, "reference"}
    modes = {
        (mode.compute, mode.kv_cache) for mode in read_proofs(artifact.folder / "golden" / f"{NATIVE}.json")
    }
    assert {("int8", "bfloat16"), ("int8", "int8"), ("bfloat16", "bfloat16")} <= modes


def test_the_same_input_gives_the_same_digest(
    built: Artifact, compiled: tuple[Store, Artifact, Artifact], recipe: Path, tmp_path: Path
) -> None:
    other = Store(tmp_path / "store")
    again = compile_artifact(other, other.resolve(str(built.folder)), NATIVE, recipe_folder=recipe.parent)
    assert again.digest == compiled[2].digest
    assert not any((built.folder / path).samefile(again.folder / path) for path in built.manifest.files)
    assert os.access(built.folder / "recipe.yaml", os.R_OK)


def test_what_is_there_already_is_said_and_left(compiled: tuple[Store, Artifact, Artifact]) -> None:
    store, _, artifact = compiled
    for target in (NATIVE, "reference", "compressed-tensors"):
        told = Listener()
        assert compile_artifact(store, artifact, target, progress=told) is artifact
        assert told.notes == [f"tiny has {target} already: nothing to do"]


def test_an_export_holds_the_same_weights(built: Artifact, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    artifact = compile_artifact(store, adopt(store, built), "awq")
    ours = open_checkpoint(artifact.folder / "checkpoint")
    theirs = open_checkpoint(artifact.folder / "exports" / "awq")
    for linear in ours.plan.linears:
        mine, other = ours.weight(linear), theirs.weight(linear)
        assert mine.codes.tobytes() == other.codes.tobytes(), linear.name  # type: ignore[union-attr]
    assert artifact.manifest.engines == built.manifest.engines
    assert artifact.manifest.lineage.parent == built.digest


def test_without_its_data_an_engine_is_proved_and_the_lack_of_validation_is_said(
    built: Artifact, tmp_path: Path
) -> None:
    store, told = Store(tmp_path / "store"), Listener()
    artifact = compile_artifact(store, adopt(store, built), NATIVE, progress=told)
    assert set(artifact.manifest.validation) == {"reference"}
    assert any("proved but not validated" in line and "heldout.txt" in line for line in told.notes)


@pytest.mark.parametrize("name", ["onnx", "tensorrt", "cuda", "gguf"])
def test_targets_to_come_are_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"target {name} is not available yet") as refused:
        find_target(name)
    assert all(target in refused.value.line() for target in TARGETS)


def test_an_unknown_target_names_the_nearest() -> None:
    with pytest.raises(UnsupportedError, match="did you mean native-x86"):
        find_target("native-x68")


def test_a_ref_without_a_tag_never_takes_the_tag_of_another_artifact(
    compiled: tuple[Store, Artifact, Artifact],
) -> None:
    store, parent, artifact = compiled
    with pytest.raises(ArtifactError, match="which tag should move"):
        compile_artifact(store, store.resolve(f"tiny@{parent.digest}"), "awq")
    assert store.resolve("tiny").digest == artifact.digest


def exporting(monkeypatch: pytest.MonkeyPatch, write: Callable[..., None]) -> None:
    target = Target("awq", "export", "for this test", "nothing", write)
    monkeypatch.setattr(run, "find_target", lambda name: target)


@pytest.mark.parametrize("end", [KeyboardInterrupt(), StorageError("disk full")], ids=["Ctrl-C", "disk full"])
def test_a_compile_that_ends_early_leaves_the_store_as_it_was(
    built: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException
) -> None:
    def half(checkpoint: Path, out: Path, on_progress: object) -> None:
        out.mkdir(parents=True)
        (out / "half").write_bytes(b"x")
        raise end

    store = Store(tmp_path / "store")
    artifact = adopt(store, built)
    before = store.list()
    exporting(monkeypatch, half)
    with pytest.raises(type(end)):
        compile_artifact(store, artifact, "awq")
    assert store.list() == before
    assert list(store.layout.staging.iterdir()) == []


def test_a_tag_that_moved_meanwhile_is_not_taken_back(
    built: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    artifact = adopt(store, built)
    newer = f"sha256:{'0' * 64}"

    def slow(checkpoint: Path, out: Path, on_progress: object) -> None:
        out.mkdir(parents=True)
        (out / "file").write_bytes(b"x")
        store.layout.tag("tiny", "latest").write_text(f"{newer}\n")

    exporting(monkeypatch, slow)
    with pytest.raises(BusyError, match="has moved"):
        compile_artifact(store, artifact, "awq")
    assert store.tagged("tiny", "latest") == newer


def test_damaged_weights_are_refused_before_they_serve(
    compiled: tuple[Store, Artifact, Artifact], tmp_path: Path
) -> None:
    _, _, artifact = compiled
    copy = tmp_path / "copy"
    copytree(artifact.folder, copy)
    weights = copy / "engines" / NATIVE / "weights.bin"
    weights.chmod(0o644)
    data = bytearray(weights.read_bytes())
    middle = len(data) // 2
    for start in (8192, middle):
        data[start : start + 65536] = bytes(byte ^ 0x2A for byte in data[start : start + 65536])
    weights.write_bytes(data)
    damaged = Store(tmp_path).resolve(str(copy))
    with pytest.raises(IntegrityError, match=r"weights\.bin: sha256"):
        open_engine(damaged, NATIVE, full=True)
    with pytest.raises(IntegrityError, match="golden"):
        load_engine(open_engine(damaged, NATIVE), EngineSettings(max_num_seqs=1))


def test_a_proof_is_repeated_with_what_was_measured(compiled: tuple[Store, Artifact, Artifact]) -> None:
    _, _, artifact = compiled
    recorded = {engine.target: engine.golden for engine in artifact.manifest.engines}[NATIVE]
    proof = prove_again(open_engine(artifact, NATIVE))
    assert recorded is not None
    assert (proof.compute, proof.prompts, proof.tolerance) == ("int8", 4, recorded.tolerance)
    assert proof.kl_max == pytest.approx(recorded.kl_max, abs=1e-6)
