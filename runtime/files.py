"""Files that are either whole or absent: write to a temporary name, sync, rename."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from gristmill.runtime.errors import StorageError

__all__ = [
    "canonical_json",
    "fsync_folder",
    "make_folder",
    "sha256_file",
    "storage_errors",
    "write_atomic",
    "writing_whole",
]

_STORAGE_ERRNOS = {
    errno.EACCES,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOSPC,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
}


@contextmanager
def storage_errors(path: Path | str) -> Iterator[None]:
    """Turn a full disk, a read-only file system and refused access into StorageError.

    `path`, or a word for it, is named where the system names none.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _STORAGE_ERRNOS:
            raise
        reason = os.strerror(error.errno or 0)
        hint = "free some space or choose another place" if error.errno == errno.ENOSPC else None
        raise StorageError(f"can't write {error.filename or path}", found=reason, hint=hint) from error


def make_folder(folder: Path) -> None:
    """Make `folder` and its parents where they are missing. Raises StorageError for any reason."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"can't make the folder {folder}", found=os.strerror(error.errno or 0)) from error


def fsync_folder(folder: Path) -> None:
    """Make renames and new names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write that becomes `path` when the block ends well, and else leaves `path` as it was.

    Any number of threads and processes may write one path: the last one wins. Raises StorageError,
    also for what is there and no file: a folder, or a device, which the new file would replace.
    """
    if path.exists() and not path.is_file():
        raise StorageError(f"can't write {path}", found="something that is no file")
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    with storage_errors(path):
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            fsync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` so that `path` holds all of it or keeps what it held. Raises StorageError."""
    with writing_whole(path) as file:
        file.write(data)


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def canonical_json(value: Any) -> bytes:
    """JSON whose bytes depend on the value alone: sorted keys, no spaces, UTF-8, a final newline."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"
