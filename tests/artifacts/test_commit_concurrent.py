"""Several processes that commit at once: every one of them succeeds."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from gristmill.artifacts.artifact import Artifact
from gristmill.artifacts.store import Store
from gristmill.artifacts.verify import verify_artifact

Commit = Callable[..., Artifact]
Fork = Callable[[Callable[[], object]], int]


def at_once(fork: Fork, bodies: Sequence[Callable[[], object]]) -> list[int]:
    """Run each body in a process of its own, all let go together; their exit codes."""
    go, let_go = os.pipe()

    def wait_then(body: Callable[[], object]) -> None:
        os.close(let_go)
        os.read(go, 1)
        body()

    pids = [fork(partial(wait_then, body)) for body in bodies]
    os.close(go)
    os.close(let_go)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


@pytest.mark.parametrize("attempt", range(8))
def test_the_same_artifact_committed_at_once_is_there_once(
    shm_path: Path, commit: Commit, fork: Fork, attempt: int
) -> None:
    store = Store(shm_path / "store")
    assert at_once(fork, [partial(commit, store, b"same")] * 4) == [0] * 4
    (row,) = store.list()
    assert verify_artifact(store.resolve("sample")).passed
    assert row.tag == "latest"
    assert list(store.layout.staging.iterdir()) == []


@pytest.mark.parametrize("attempt", range(8))
def test_different_artifacts_committed_at_once_are_all_there(
    shm_path: Path, commit: Commit, fork: Fork, attempt: int
) -> None:
    store = Store(shm_path / "store")
    payloads = [b"1", b"2", b"3", b"4"]
    assert at_once(fork, [partial(commit, store, payload) for payload in payloads]) == [0] * 4
    rows = store.list()
    assert len(rows) == len(payloads)
    assert all(verify_artifact(store.resolve(f"sample@{row.digest}")).passed for row in rows)
    assert [row.tag for row in rows].count("latest") == 1


def test_a_damaged_artifact_repaired_by_two_at_once_is_whole(
    shm_path: Path, commit: Commit, fork: Fork
) -> None:
    store = Store(shm_path / "store")
    (commit(store).folder / "recipe.yaml").unlink()
    assert at_once(fork, [partial(commit, store)] * 3) == [0] * 3
    assert verify_artifact(store.resolve("sample")).passed


def test_blobs_removed_by_two_at_once_disturb_neither(shm_path: Path, commit: Commit, fork: Fork) -> None:
    store = Store(shm_path / "store")
    commit(store)
    for number in range(500):
        (store.layout.blobs / f"{number:064x}").touch()
    assert at_once(fork, [partial(commit, store, payload) for payload in (b"1", b"2", b"3")]) == [0] * 3
    assert all(blob.lstat().st_nlink > 1 for blob in store.layout.blobs.iterdir())
