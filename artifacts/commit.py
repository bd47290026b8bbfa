"""From a staged folder to an artifact: all of it or none, whenever it is interrupted.

The order carries the promise. Every file is synced before the folder gets its
final name, the folder is in place before the record and the tag are, and each
of those steps is one rename. What was staged by a build that died is removed
by the next one.
"""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

from gristmill.artifacts.artifact import Artifact, open_artifact
from gristmill.artifacts.blobs import share_blob
from gristmill.artifacts.layout import StoreLayout
from gristmill.artifacts.manifest import FileEntry, Manifest
from gristmill.artifacts.manifest_bytes import MANIFEST_FILE, manifest_bytes
from gristmill.artifacts.names import digest_of
from gristmill.artifacts.paths import path_fault, read_tree
from gristmill.artifacts.record import BuildRecord, record_bytes
from gristmill.artifacts.tags import tag_bytes
from gristmill.artifacts.verify import verify_artifact
from gristmill.runtime.errors import ArtifactError, GristmillError
from gristmill.runtime.files import fsync_folder, sha256_file, storage_errors, write_atomic

__all__ = ["commit_folder", "describe_files"]


def describe_files(folder: Path) -> dict[str, FileEntry]:
    """Size and hash of each file below `folder`, the manifest's aside, in path order.

    Raises ArtifactError, naming the entry, for a link, a special file, an empty
    folder or a name that an artifact can't hold.
    """
    tree = read_tree(folder)
    for path, kind in sorted(tree.odd.items()):
        raise ArtifactError(f"staged {path}", found=kind, expected="regular files and folders only")
    for path in sorted(tree.folders):
        if not any(file.startswith(f"{path}/") for file in tree.files):
            raise ArtifactError(f"staged {path}", found="an empty folder", expected="a folder with files")
    for path in sorted(tree.files):
        if fault := path_fault(path):
            raise ArtifactError(f"staged file {path}", found=fault)
    paths = sorted(tree.files.keys() - {MANIFEST_FILE})
    return {path: FileEntry(tree.files[path], sha256_file(folder / path)) for path in paths}


def commit_folder(
    layout: StoreLayout, staged: Path, manifest: Manifest, name: str, tag: str, record: BuildRecord | None
) -> Artifact:
    """Make `staged` an artifact and point `name:tag` at it; `manifest.files` is filled in from the folder."""
    with storage_errors(staged):
        manifest = replace(manifest, files=describe_files(staged))
        data = manifest_bytes(manifest)
        digest = digest_of(data)
        final = layout.artifact(digest)
        if not _is_sound(final):
            _seal(layout, staged, manifest, data)
            _move_into_place(staged, final)
        if record is not None and not layout.record(digest).exists():
            _publish(staged.parent / "record", record_bytes(record), layout.record(digest))
        _point(layout, staged.parent / "tag", name, tag, digest)
        return open_artifact(final, name, tag)


def _seal(layout: StoreLayout, staged: Path, manifest: Manifest, data: bytes) -> None:
    """Sync all content to disk and share equal files, so that a rename is all that is missing."""
    for path, entry in manifest.files.items():
        _sync_read_only(staged / path)
        share_blob(layout.blobs, staged / path, entry.sha256)
    write_atomic(staged / MANIFEST_FILE, data)
    _sync_read_only(staged / MANIFEST_FILE)
    for folder, _, _ in os.walk(staged, topdown=False):
        fsync_folder(Path(folder))
    fsync_folder(layout.blobs)


def _sync_read_only(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fchmod(descriptor, os.fstat(descriptor).st_mode & 0o444)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _move_into_place(staged: Path, final: Path) -> None:
    """Rename; where the folder already exists it is kept if sound and set aside if damaged."""
    attempt = 0
    while True:
        try:
            staged.rename(final)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if _is_sound(final):
                return
            attempt += 1
            _set_aside(final, staged.parent / f"damaged-{attempt}")
        else:
            fsync_folder(final.parent)
            return


def _set_aside(folder: Path, place: Path) -> None:
    try:
        folder.rename(place)
    except FileNotFoundError:
        # Another build of the same bytes has set it aside: the rename is tried again either way.
        return


def _is_sound(folder: Path) -> bool:
    """Whether `folder` already holds exactly the artifact that it is named for."""
    if not folder.is_dir():
        return False
    try:
        return verify_artifact(open_artifact(folder)).passed
    except GristmillError:
        return False


def _point(layout: StoreLayout, scratch: Path, name: str, tag: str, digest: str) -> None:
    target = layout.tag(name, tag)
    target.parent.mkdir(exist_ok=True)
    fsync_folder(layout.tags)
    _publish(scratch, tag_bytes(digest), target)


def _publish(scratch: Path, data: bytes, target: Path) -> None:
    """Write beside the staged folder and rename, so that no kill leaves a temporary file in the open."""
    write_atomic(scratch, data)
    scratch.replace(target)
    fsync_folder(target.parent)
