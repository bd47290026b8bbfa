"""The local store: immutable artifacts named by their content, and the tags that point to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gristmill.artifacts.artifact import Artifact, open_artifact
from gristmill.artifacts.blobs import remove_unused_blobs
from gristmill.artifacts.catalog import ArtifactRow, find, list_rows
from gristmill.artifacts.commit import commit_folder
from gristmill.artifacts.layout import StoreLayout
from gristmill.artifacts.manifest import Manifest
from gristmill.artifacts.names import check_name, check_tag
from gristmill.artifacts.reading import reading
from gristmill.artifacts.record import BuildRecord, read_record
from gristmill.artifacts.refs import DEFAULT_TAG, FolderRef, parse_ref
from gristmill.artifacts.staging import open_staging, remove_stale_staging
from gristmill.artifacts.tags import read_tag
from gristmill.runtime.errors import ArtifactError
from gristmill.runtime.files import storage_errors

__all__ = ["Store"]


class Store:
    """A store in a folder, which is made by the first commit. Safe for any number of processes."""

    def __init__(self, path: Path) -> None:
        self.layout = StoreLayout(path.expanduser().absolute())

    @property
    def path(self) -> Path:
        """The store's folder."""
        return self.layout.root

    def resolve(self, ref: str) -> Artifact:
        """The artifact that a REF means, its manifest checked and its files not yet (see `verify.py`).

        Raises ArtifactError if there is none (naming what is near) or its
        manifest is refused, IntegrityError if tag, folder and manifest
        disagree, UnsupportedError for a registry.
        """
        parsed = parse_ref(ref)
        if isinstance(parsed, FolderRef):
            return open_artifact(parsed.folder.resolve())
        self.layout.require_folder()
        with reading(self.path):
            return find(self.layout, parsed)

    def tagged(self, name: str, tag: str) -> str | None:
        """The digest that a tag points to, None if there is no such tag. Raises IntegrityError."""
        return read_tag(self.layout, check_name(name), check_tag(tag))

    def list(self) -> tuple[ArtifactRow, ...]:
        """Every tag and untagged artifact; damaged ones are rows with a `fault`. Raises StorageError."""
        self.layout.require_folder()
        with reading(self.path):
            return list_rows(self.layout)

    def record(self, artifact: Artifact) -> BuildRecord | None:
        """How an artifact was built, where this store knows."""
        path = self.layout.record(artifact.digest)
        return read_record(path) if path.exists() else None

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """An empty folder to assemble one artifact in, removed after the body unless it was committed.

        What builds that died have left is removed first. Raises StorageError.
        """
        self.layout.create()
        remove_stale_staging(self.layout.staging)
        try:
            with open_staging(self.layout.staging) as scratch:
                folder = scratch / "artifact"
                with storage_errors(folder):
                    folder.mkdir()
                yield folder
        finally:
            remove_unused_blobs(self.layout.blobs)

    def commit(
        self,
        staged: Path,
        manifest: Manifest,
        *,
        tag: str = DEFAULT_TAG,
        name: str | None = None,
        record: BuildRecord | None = None,
    ) -> Artifact:
        """Make a folder from `staging` an artifact and point a tag at it.

        `manifest.files` must be empty: it is filled in from the folder. `name`
        is the manifest's unless given. Committing what the store already holds
        only moves the tag; a damaged copy of it is replaced.

        Interrupted at any point, the store holds either what it held or all
        of the new artifact. Raises ArtifactError for content or a manifest
        that a reader would refuse, StorageError where the disk fails.
        """
        name = check_name(manifest.name if name is None else name)
        check_tag(tag)
        assert staged.parent.parent == self.layout.staging, "commit takes a folder of staging()"
        if manifest.files:
            raise ArtifactError("manifest: files", found=f"{len(manifest.files)} files", expected="none yet")
        return commit_folder(self.layout, staged, manifest, name, tag, record)
