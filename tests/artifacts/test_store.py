"""The local store: commit, list, resolve, and what it does about damage."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gristmill.artifacts.artifact import Artifact
from gristmill.artifacts.manifest import Manifest
from gristmill.artifacts.record import BuildRecord, StageRecord
from gristmill.artifacts.store import Store
from gristmill.artifacts.verify import verify_artifact
from gristmill.runtime.errors import ArtifactError, IntegrityError, StorageError, UnsupportedError

Commit = Callable[..., Artifact]

RECORD = BuildRecord(
    "2026-11-29T20:30:00Z", 12.5, {"cpu": "a"}, {"peak_memory_bytes": 1e9}, (StageRecord("load", 1.0, False),)
)


def test_a_committed_artifact_is_the_sample_to_the_byte(
    store: Store, commit: Commit, sample_folder: Path
) -> None:
    artifact = commit(store)
    committed = {path.relative_to(artifact.folder): path for path in artifact.folder.rglob("*")}
    originals = {path.relative_to(sample_folder): path for path in sample_folder.rglob("*")}
    assert committed.keys() == originals.keys()
    files = [path for path, original in originals.items() if original.is_file()]
    assert all(committed[path].read_bytes() == originals[path].read_bytes() for path in files)


def test_a_committed_artifact_verifies_and_nothing_else_is_left(store: Store, commit: Commit) -> None:
    artifact = commit(store)
    assert verify_artifact(artifact).passed
    assert list(store.layout.staging.iterdir()) == []
    assert artifact.ref == f"sample:latest@{artifact.digest}"


def test_the_digest_does_not_depend_on_tag_name_store_or_record(
    tmp_path: Path, store: Store, commit: Commit
) -> None:
    other = Store(tmp_path / "other")
    assert commit(store).digest == commit(other, tag="v2", name="renamed", record=RECORD).digest


@pytest.mark.parametrize(
    "form", ["sample", "sample:latest", "sample@{}", "sample:latest@{}", "sample@{:.19}"]
)
def test_every_form_of_a_ref_finds_the_artifact(store: Store, commit: Commit, form: str) -> None:
    artifact = commit(store)
    assert store.resolve(form.format(artifact.digest)).digest == artifact.digest


def test_a_folder_is_a_ref_too(store: Store, commit: Commit, sample_folder: Path) -> None:
    found = store.resolve(str(sample_folder))
    assert (found.name, found.tag, found.digest) == ("sample", None, commit(store).digest)


def test_a_digest_of_another_name_is_not_found(store: Store, commit: Commit) -> None:
    artifact = commit(store)
    with pytest.raises(ArtifactError, match=f"no artifact other@.*found {artifact.digest} as sample"):
        store.resolve(f"other@{artifact.digest}")


def test_a_digest_wins_over_a_tag_that_has_moved_on(store: Store, commit: Commit) -> None:
    old = commit(store)
    commit(store, payload=b"new")
    found = store.resolve(f"sample:latest@{old.digest}")
    assert (found.digest, found.tag) == (old.digest, None)


def test_an_unknown_ref_names_what_is_near(store: Store, commit: Commit) -> None:
    commit(store, name="support-assistant", tag="v1")
    with pytest.raises(ArtifactError, match=r"no artifact suport-asistant .*did you mean support-assistant"):
        store.resolve("suport-asistant")
    with pytest.raises(ArtifactError, match="did you mean support-assistant:v1"):
        store.resolve("support-assistant:v2")


def test_a_folder_named_without_slash_is_explained(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArtifactError, match=r"for the folder write \./model"):
        store.resolve("model")


def test_a_registry_ref_is_refused(store: Store) -> None:
    with pytest.raises(UnsupportedError, match="reads no registry"):
        store.resolve("oci://localhost:5000/sample")


def test_looking_into_a_store_that_is_not_there_makes_nothing(store: Store) -> None:
    assert store.list() == ()
    with pytest.raises(ArtifactError, match="no artifact sample"):
        store.resolve("sample")
    assert not store.path.exists()


def test_a_moved_tag_leaves_the_old_artifact_untagged(store: Store, commit: Commit) -> None:
    old, new = commit(store), commit(store, payload=b"new")
    assert [(row.name, row.tag, row.digest) for row in store.list()] == [
        ("sample", "latest", new.digest),
        ("sample", None, old.digest),
    ]
    assert store.resolve(f"sample@{old.digest}").digest == old.digest


def test_a_row_holds_size_and_the_recorded_time(store: Store, commit: Commit) -> None:
    artifact = commit(store, record=RECORD)
    (row,) = store.list()
    on_disk = sum(path.stat().st_size for path in artifact.folder.rglob("*") if path.is_file())
    assert (row.size_bytes, row.created, row.fault) == (on_disk, "2026-11-29T20:30:00Z", None)
    assert store.record(artifact) == RECORD


def test_committing_the_same_content_again_changes_nothing(store: Store, commit: Commit) -> None:
    first = commit(store, record=RECORD)
    before = {path: path.stat() for path in first.folder.rglob("*")}
    second = commit(store, record=BuildRecord("2026-12-01T00:00:00Z"))
    assert second == first
    assert store.record(second) == RECORD
    assert {path: (status.st_ino, status.st_mtime_ns) for path, status in before.items()} == {
        path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in second.folder.rglob("*")
    }


def test_equal_files_of_two_artifacts_share_their_bytes(store: Store, commit: Commit) -> None:
    one, two = commit(store), commit(store, payload=b"more")
    weights = "checkpoint/model.safetensors"
    assert (one.folder / weights).samefile(two.folder / weights)
    assert (one.folder / "manifest.json").read_bytes() != (two.folder / "manifest.json").read_bytes()


def test_files_of_an_artifact_are_read_only(store: Store, commit: Commit) -> None:
    modes = {path.stat().st_mode & 0o222 for path in commit(store).folder.rglob("*") if path.is_file()}
    assert modes == {0}


def test_a_damaged_blob_is_replaced_before_it_is_used(store: Store, commit: Commit) -> None:
    old = commit(store)
    weights = "checkpoint/model.safetensors"
    sha256 = old.manifest.files[weights].sha256
    blob = store.layout.blobs / sha256
    blob.chmod(0o644)
    blob.write_bytes(bytes(64))
    new = commit(store, payload=b"new")
    assert verify_artifact(new).passed
    assert blob.samefile(new.folder / weights)
    assert not verify_artifact(old).passed


def test_committing_again_repairs_a_damaged_artifact(store: Store, commit: Commit) -> None:
    artifact = commit(store)
    (artifact.folder / "recipe.yaml").unlink()
    assert verify_artifact(commit(store)).passed


def test_files_are_copied_where_the_file_system_has_no_links(
    store: Store, commit: Commit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_links)
    one, two = commit(store), commit(store, payload=b"more")
    assert verify_artifact(one).passed
    assert verify_artifact(two).passed
    assert list(store.layout.blobs.iterdir()) == []


def test_blobs_that_no_artifact_uses_are_removed(store: Store, commit: Commit) -> None:
    artifact = commit(store, payload=b"more")
    shutil.rmtree(artifact.folder)
    kept = commit(store)
    expected = {entry.sha256 for entry in kept.manifest.files.values()}
    assert {path.name for path in store.layout.blobs.iterdir()} == expected


def test_damage_becomes_a_row_and_hides_nothing(store: Store, commit: Commit) -> None:
    broken, cut, sound = commit(store, b"1", "v1"), commit(store, b"2", "v2"), commit(store, b"3", "v3")
    (broken.folder / "manifest.json").unlink()
    os.truncate(cut.folder / "checkpoint/payload.bin", 0)
    store.layout.tag("sample", "v0").write_text("sha256:12\n")
    store.layout.tag("sample", "v4").write_text(f"sha256:{'4' * 64}\n")
    rows = {row.tag: row for row in store.list()}
    assert [tag for tag, row in rows.items() if row.fault is None] == ["v3"]
    assert rows["v3"].digest == sound.digest
    faults = [str(rows[tag].fault) for tag in ("v0", "v1", "v2", "v4")]
    expected = ["v0; found 'sha256:12", "manifest.json: missing", "payload.bin: size", "not hold"]
    assert all(part in fault for part, fault in zip(expected, faults, strict=True))


def test_a_tag_without_its_artifact_is_refused(store: Store, commit: Commit) -> None:
    shutil.rmtree(commit(store).folder)
    with pytest.raises(IntegrityError, match=r"tag sample:latest points to sha256:.* does not hold"):
        store.resolve("sample")


def test_a_manifest_that_is_not_the_tags_is_refused(store: Store, commit: Commit) -> None:
    one, two = commit(store, b"1", "v1"), commit(store, b"2", "v2")
    shutil.copyfile(two.folder / "manifest.json", (one.folder / "manifest.json").with_suffix(".new"))
    one.folder.joinpath("manifest.new").replace(one.folder / "manifest.json")
    with pytest.raises(IntegrityError, match=rf"manifest\.json: digest; found {two.digest}"):
        store.resolve("sample:v1")


def test_a_store_path_that_is_a_file_is_refused(tmp_path: Path, commit: Commit) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="is not a folder"):
        commit(Store(tmp_path / "file"))


@pytest.mark.parametrize(
    ("path", "message"),
    [("a link", "found a path whose parts"), (".hidden", "found a path"), ("notes", "notes: not in one of")],
)
def test_a_file_that_an_artifact_cannot_hold_is_refused(
    store: Store, sample_manifest: Manifest, sample_folder: Path, path: str, message: str
) -> None:
    with store.staging() as folder:
        shutil.copytree(sample_folder, folder, dirs_exist_ok=True)
        (folder / path).touch()
        with pytest.raises(ArtifactError, match=message):
            store.commit(folder, sample_manifest)
    assert store.list() == ()
    assert list(store.layout.staging.iterdir()) == []


def test_a_staged_link_is_refused(store: Store, sample_manifest: Manifest) -> None:
    with store.staging() as folder:
        (folder / "checkpoint").symlink_to("/")
        with pytest.raises(ArtifactError, match="staged checkpoint; found a symbolic link"):
            store.commit(folder, sample_manifest)


@pytest.mark.parametrize(("name", "tag"), [("", "v1"), ("UP", "v1"), ("a/b", "v1"), ("a", ".v1"), ("a", "")])
def test_a_name_or_tag_that_no_ref_could_mean_is_refused(
    store: Store, commit: Commit, name: str, tag: str
) -> None:
    with pytest.raises(ArtifactError, match=r"artifact (name|tag)"):
        commit(store, name=name, tag=tag)
