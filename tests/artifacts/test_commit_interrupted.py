"""A commit ended at every one of its steps, by kill -9 and by Ctrl-C: all of the artifact or none.

A child process commits; an audit hook ends it just before its n-th operation
on a file of the store, for every n there is.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gristmill.artifacts.artifact import Artifact
from gristmill.artifacts.store import Store
from gristmill.artifacts.verify import verify_artifact
from gristmill.runtime.errors import EXIT_INTERRUPTED, ArtifactError

Commit = Callable[..., Artifact]
Fork = Callable[[Callable[[], object]], int]

OPERATIONS = {"open", "shutil.rmtree"} | {
    f"os.{name}" for name in ("chmod", "link", "mkdir", "remove", "rename", "rmdir", "scandir")
}


def end_before(root: Path, step: int, end: Callable[[], None]) -> None:
    """Call `end` before this process's operation number `step` below `root`."""
    seen = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if event in OPERATIONS and any(str(root) in str(argument) for argument in arguments[:2]):
            seen += 1
            if seen == step:
                end()

    sys.addaudithook(hook)


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt() -> None:
    raise KeyboardInterrupt


def interrupted_stores(
    root: Path, commit: Commit, fork: Fork, end: Callable[[], None], first: bytes | None
) -> Iterator[Store]:
    """For each step of a commit: a store, holding the artifact `first` or none, where it was ended there."""
    for step in range(1, 1000):
        store = Store(root / f"store-{step}")
        if first is not None:
            commit(store, first)

        def body(store: Store = store, step: int = step) -> None:
            end_before(store.path, step, end)
            commit(store, b"new")

        status = os.waitpid(fork(body), 0)[1]
        if status == 0:
            assert step > 40, "the hook saw too few operations to prove anything"
            return
        assert os.waitstatus_to_exitcode(status) in (-signal.SIGKILL, EXIT_INTERRUPTED)
        yield store
    pytest.fail("the commit never ran to its end")


def assert_listed_is_whole(store: Store) -> None:
    """Every artifact that can be listed is whole, and so is what the tag means, if there is one."""
    rows = store.list()
    assert [row.fault for row in rows] == [None] * len(rows)
    for row in rows:
        assert verify_artifact(store.resolve(f"sample@{row.digest}")).passed
    if any(row.tag for row in rows):
        assert verify_artifact(store.resolve("sample")).passed
    else:
        with pytest.raises(ArtifactError, match="no artifact sample"):
            store.resolve("sample")


@pytest.mark.parametrize("end", [kill_self, interrupt])
def test_a_commit_ended_at_any_step_leaves_all_or_nothing_and_the_next_succeeds(
    shm_path: Path, commit: Commit, fork: Fork, end: Callable[[], None]
) -> None:
    numbers = []
    for store in interrupted_stores(shm_path, commit, fork, end, first=b"old"):
        assert_listed_is_whole(store)
        numbers.append(len(store.list()))
        again = commit(store, b"new")
        assert store.resolve("sample").digest == again.digest
        assert list(store.layout.staging.iterdir()) == []
        assert {path.name for path in store.layout.tags.rglob("*")} == {"sample", "latest"}
    assert numbers == sorted(numbers)
    assert set(numbers) == {1, 2}


def test_a_first_commit_killed_at_any_step_lists_nothing_half_done(
    shm_path: Path, commit: Commit, fork: Fork
) -> None:
    for store in interrupted_stores(shm_path, commit, fork, kill_self, first=None):
        assert_listed_is_whole(store)


def test_what_a_killed_build_staged_is_removed_by_the_next(store: Store, commit: Commit, fork: Fork) -> None:
    def body() -> None:
        with store.staging() as folder:
            (folder / "half").write_bytes(bytes(1000))
            kill_self()

    store.layout.create()
    os.waitpid(fork(body), 0)
    assert len(list(store.layout.staging.rglob("half"))) == 1
    commit(store)
    assert list(store.layout.staging.iterdir()) == []


def test_what_a_live_build_has_staged_is_left_alone(store: Store, commit: Commit) -> None:
    with store.staging() as folder:
        (folder / "half").touch()
        commit(store)
        assert (folder / "half").exists()
