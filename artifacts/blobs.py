"""Equal files of several artifacts share their bytes: a blob is a hard link named by its SHA-256."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

from gristmill.runtime.files import sha256_file

__all__ = ["link_or_copy", "remove_unused_blobs", "share_blob"]

_NO_LINKS = {errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP}


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target` a hard link to `source`, or a copy where the file system allows no link."""
    if not _try_link(source, target):
        shutil.copyfile(source, target)


def share_blob(blobs: Path, staged: Path, sha256: str) -> None:
    """Make `staged`, whose content has this hash, and the blob of that name one file.

    A blob is compared before it is used, and replaced if it is damaged. Where
    the file system allows no link, `staged` stays as it is.
    """
    blob = blobs / sha256
    while True:
        try:
            _try_link(staged, blob)
            return
        except FileExistsError:
            if _adopt(blob, staged, sha256):
                return


def remove_unused_blobs(blobs: Path) -> None:
    """Remove each blob that no artifact and no staged build links to."""
    for blob in blobs.iterdir():
        # Another build may be removing the same blobs.
        with suppress(FileNotFoundError):
            if blob.lstat().st_nlink == 1:
                blob.unlink()


def _adopt(blob: Path, staged: Path, sha256: str) -> bool:
    """Link the two files; False if the blob has just been removed, so that the caller tries again."""
    spare = staged.with_name(f".{staged.name}.link")
    try:
        if staged.samefile(blob):
            return True
        sound = not blob.is_symlink() and sha256_file(blob) == sha256
        kept, given_up = (blob, staged) if sound else (staged, blob)
        if _try_link(kept, spare):
            spare.replace(given_up)
    except FileNotFoundError:
        return False
    finally:
        spare.unlink(missing_ok=True)
    return True


def _try_link(source: Path, target: Path) -> bool:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    return True
