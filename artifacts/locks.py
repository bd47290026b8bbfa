"""Locks between processes: a file held with flock, which the kernel frees when its holder dies."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gristmill.runtime.errors import BusyError
from gristmill.runtime.files import storage_errors

__all__ = ["exclusive_lock", "try_lock", "unlock"]


@contextmanager
def exclusive_lock(path: Path, what: str, hint: str) -> Iterator[None]:
    """Hold `path` for the body.

    Never waits: raises BusyError, naming `what` and the holder's pid, if it is held.
    """
    descriptor = try_lock(path)
    if descriptor is None:
        raise BusyError(f"{what} is held by another process", found=_holder(path), hint=hint)
    try:
        with storage_errors(path):
            _sign(descriptor)
        yield
    finally:
        unlock(path, descriptor)


def try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock until `unlock` or the process's end, or None where it is held.

    The kernel frees a dead process's lock, so a stale one can't exist.
    """
    with storage_errors(path):
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            except BaseException:
                os.close(descriptor)
                raise
            # The previous holder may have removed the file between open and flock.
            if _is_current(path, descriptor):
                return descriptor
            os.close(descriptor)


def unlock(path: Path, descriptor: int) -> None:
    """Free a lock. The file goes first, so that nobody can hold a removed one unknowingly."""
    path.unlink(missing_ok=True)
    os.close(descriptor)


def _sign(descriptor: int) -> None:
    """Leave the holder's pid in the file, for the message that others get."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def _is_current(path: Path, descriptor: int) -> bool:
    try:
        named = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(descriptor))


def _holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip() or "a process that has just started"
    except OSError:
        return "a process that has just ended"
