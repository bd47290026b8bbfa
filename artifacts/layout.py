"""Where things lie in a store's folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gristmill.artifacts.names import folder_of
from gristmill.runtime.errors import StorageError
from gristmill.runtime.files import make_folder

__all__ = ["StoreLayout"]


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """The folders of a store; README.md says what each holds."""

    root: Path

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    @property
    def blobs(self) -> Path:
        return self.root / "blobs"

    @property
    def tags(self) -> Path:
        return self.root / "tags"

    @property
    def records(self) -> Path:
        return self.root / "records"

    @property
    def staging(self) -> Path:
        return self.root / "staging"

    @property
    def stages(self) -> Path:
        """The stage cache of builds; `pipeline/stages.py` owns it."""
        return self.root / "stages"

    def artifact(self, digest: str) -> Path:
        """The folder of the artifact with this digest."""
        return self.artifacts / folder_of(digest)

    def record(self, digest: str) -> Path:
        """The build record of the artifact with this digest."""
        return self.records / f"{folder_of(digest)}.json"

    def tag(self, name: str, tag: str) -> Path:
        """The file that holds a tag's digest."""
        return self.tags / name / tag

    def create(self) -> None:
        """Make the folders that are missing. Raises StorageError."""
        self.require_folder()
        for folder in (self.artifacts, self.blobs, self.tags, self.records, self.staging):
            make_folder(folder)

    def require_folder(self) -> None:
        """Raise StorageError if something else than a folder stands where the store should be."""
        if self.root.exists() and not self.root.is_dir():
            raise StorageError(f"the store {self.root} is not a folder", hint="choose another --store")
