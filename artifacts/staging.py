"""Where an artifact is assembled before it exists: a locked folder that nothing else looks into."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gristmill.artifacts.locks import exclusive_lock, try_lock, unlock
from gristmill.runtime.files import storage_errors

__all__ = ["open_staging", "remove_stale_staging"]


@contextmanager
def open_staging(root: Path) -> Iterator[Path]:
    """A new empty folder below `root` for the body's time, whatever ends the body."""
    name = secrets.token_hex(8)
    with exclusive_lock(root / f"{name}.lock", f"staging folder {name}", "try again"):
        folder = root / name
        try:
            with storage_errors(folder):
                folder.mkdir()
            yield folder
        finally:
            # What can't be removed now is removed by the next build, once this lock is free.
            shutil.rmtree(folder, ignore_errors=True)


def remove_stale_staging(root: Path) -> None:
    """Remove the folders whose builds have died: those whose lock is free."""
    names = {path.name.removesuffix(".lock") for path in root.iterdir()}
    for name in sorted(names):
        lock = root / f"{name}.lock"
        descriptor = try_lock(lock)
        if descriptor is None:
            continue
        try:
            shutil.rmtree(root / name, ignore_errors=True)
        finally:
            unlock(lock, descriptor)
