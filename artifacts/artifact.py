"""An artifact on disk: a folder, what its manifest says, and the digest that names it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gristmill.artifacts.manifest import Manifest
from gristmill.artifacts.manifest_bytes import MANIFEST_FILE, read_manifest
from gristmill.artifacts.names import digest_of
from gristmill.runtime.errors import ArtifactError

__all__ = ["Artifact", "open_artifact"]


@dataclass(frozen=True, slots=True)
class Artifact:
    """An artifact as it was found. Its manifest has been checked, its other files have not.

    `name` and `tag` are how it was asked for; both lie outside the digest.
    """

    folder: Path
    manifest: Manifest
    digest: str
    name: str
    tag: str | None
    manifest_size: int

    @property
    def ref(self) -> str:
        """The REF that always means these bytes: `name:tag@sha256:...`."""
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.name}{tag}@{self.digest}"

    @property
    def size_bytes(self) -> int:
        """Bytes of all files, the manifest included."""
        return self.manifest_size + sum(entry.size for entry in self.manifest.files.values())


def open_artifact(folder: Path, name: str | None = None, tag: str | None = None) -> Artifact:
    """The artifact in `folder`, named by its manifest unless `name` is given.

    Raises ArtifactError if the folder or its manifest is missing or wrong.
    """
    if not folder.is_dir():
        raise ArtifactError(f"{folder}: not a folder", expected=f"a folder with {MANIFEST_FILE}")
    manifest, data = read_manifest(folder)
    return Artifact(folder, manifest, digest_of(data), name or manifest.name, tag, len(data))
