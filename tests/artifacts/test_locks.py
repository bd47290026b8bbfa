"""Locks: held by one process at a time, and never by a dead one."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from gristmill.artifacts.locks import exclusive_lock, try_lock, unlock
from gristmill.runtime.errors import BusyError


def test_a_second_holder_is_told_who_the_first_is(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        exclusive_lock(path, "the stage", "wait"),
        pytest.raises(
            BusyError, match=f"the stage is held by another process; found pid {os.getpid()} .*wait"
        ),
        exclusive_lock(path, "the stage", "wait"),
    ):
        pass


def test_a_lock_can_be_taken_again_once_it_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for _ in range(3):
        with exclusive_lock(path, "x", "y"):
            assert path.exists()
        assert not path.exists()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    pid = os.fork()
    if pid == 0:
        try_lock(path)
        (tmp_path / "held").touch()
        time.sleep(60)
        os._exit(0)
    while not (tmp_path / "held").exists():
        time.sleep(0.005)
    assert try_lock(path) is None
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    descriptor = try_lock(path)
    assert descriptor is not None
    unlock(path, descriptor)


def test_no_two_processes_hold_one_lock_while_its_file_comes_and_goes(tmp_path: Path) -> None:
    path, inside = tmp_path / "lock", tmp_path / "inside"

    def contend() -> int:
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            descriptor = try_lock(path)
            if descriptor is None:
                continue
            try:
                inside.mkdir()
                inside.rmdir()
            except OSError:
                return 1
            unlock(path, descriptor)
        return 0

    pids = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            os._exit(contend())
        pids.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0, 0, 0]
