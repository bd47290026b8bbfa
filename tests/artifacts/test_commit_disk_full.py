"""A commit on a disk that is really full: one clear error, and nothing half-written."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gristmill.artifacts.artifact import Artifact
from gristmill.artifacts.store import Store
from gristmill.artifacts.verify import verify_artifact
from gristmill.runtime.errors import EXIT_DONE, StorageError

Commit = Callable[..., Artifact]
Fork = Callable[[Callable[[], object]], int]
PAGE = 4096


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path | None]:
    """A file system of 256 KiB, or None where this user may not mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fails_with_storage_error(commit: Commit, store: Store, payload: bytes) -> bool:
    try:
        commit(store, payload)
    except StorageError:
        return True
    return False


def limited_commit(fork: Fork, commit: Commit, store: Store, payload: bytes, limit: int) -> int:
    """The exit code of a process that commits and whose files may not exceed `limit` bytes."""

    def body() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        commit(store, payload)

    return os.waitstatus_to_exitcode(os.waitpid(fork(body), 0)[1])


def assert_only_whole(store: Store) -> None:
    rows = store.list()
    assert rows
    assert all(row.fault is None for row in rows)
    assert all(verify_artifact(store.resolve(f"sample@{row.digest}")).passed for row in rows)


def test_at_every_fill_level_of_a_disk_the_store_stays_whole(
    tiny_disk: Path | None, tmp_path: Path, commit: Commit, fork: Fork
) -> None:
    if tiny_disk is None:
        assert (
            limited_commit(fork, commit, Store(tmp_path / "store"), bytes(5000), 4500)
            == StorageError.exit_code
        )
        return
    store = Store(tiny_disk / "store")
    commit(store, b"old")
    filler = tiny_disk / "filler"
    outcomes = []
    for free_pages in range(16):
        status = os.statvfs(tiny_disk)
        filler.write_bytes(bytes(max(0, status.f_bavail - free_pages) * PAGE))
        outcomes.append(fails_with_storage_error(commit, store, b"new %d" % free_pages))
        assert_only_whole(store)
        filler.unlink()
        assert list(store.layout.staging.iterdir()) == []
    assert outcomes[0]
    assert not outcomes[-1]
    assert not fails_with_storage_error(commit, store, b"at last")


def test_a_failed_commit_gives_its_space_back(
    tiny_disk: Path | None, tmp_path: Path, commit: Commit, fork: Fork
) -> None:
    if tiny_disk is None:
        store = Store(tmp_path / "store")
        assert limited_commit(fork, commit, store, bytes(5000), 4500) == StorageError.exit_code
        assert list(store.layout.staging.iterdir()) == []
        return
    store = Store(tiny_disk / "store")
    commit(store, b"old")
    before = os.statvfs(tiny_disk).f_bavail
    assert fails_with_storage_error(commit, store, bytes(1 << 20))
    assert os.statvfs(tiny_disk).f_bavail == before


@pytest.mark.parametrize("limit", [0, 64, 2000, 2800, 3000])
def test_a_limit_on_file_size_is_a_storage_error_too(
    store: Store, commit: Commit, fork: Fork, limit: int
) -> None:
    commit(store, b"old")
    outcome = limited_commit(fork, commit, store, b"new", limit)
    assert outcome == (EXIT_DONE if limit == 3000 else StorageError.exit_code)
    assert_only_whole(store)


def test_the_manifest_is_what_meets_the_full_disk(store: Store, commit: Commit, fork: Fork) -> None:
    """The staged files fit, the manifest does not: the failure lies inside `commit` itself."""
    commit(store, b"old")
    digest = store.resolve("sample").digest
    assert limited_commit(fork, commit, store, b"new", 2500) == StorageError.exit_code
    assert [row.digest for row in store.list()] == [digest]
