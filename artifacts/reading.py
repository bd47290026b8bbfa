"""Reading from a disk that may refuse: one error for all of it, and no more bytes than allowed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gristmill.runtime.errors import ArtifactError, StorageError

__all__ = ["read_bounded", "reading"]


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any operating system error of the body into StorageError."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"can't read {error.filename or path}", found=error.strerror) from error


def read_bounded(path: Path, limit: int) -> bytes:
    """A regular file's bytes, at most `limit` of them. Raises ArtifactError, StorageError."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ArtifactError(f"{path}: not a regular file")
    if not path.exists():
        raise ArtifactError(f"{path}: missing")
    with reading(path), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise ArtifactError(f"{path}: size", found=f"{size} bytes", expected=f"at most {limit}")
        return file.read(size)  # not `limit`: as much memory would be asked for
