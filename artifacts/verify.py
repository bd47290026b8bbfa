"""Whether an artifact's bytes are the recorded ones, file by file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from gristmill.artifacts.artifact import Artifact
from gristmill.artifacts.manifest_bytes import MANIFEST_FILE
from gristmill.artifacts.names import folder_of
from gristmill.artifacts.paths import Tree, read_tree
from gristmill.artifacts.reading import reading
from gristmill.runtime.errors import IntegrityError
from gristmill.runtime.files import sha256_file

__all__ = ["FileFault", "VerifyReport", "require_contents", "require_verified", "verify_artifact"]

Rule = Literal["missing", "extra", "kind", "size", "sha256", "digest"]


@dataclass(frozen=True, slots=True)
class FileFault:
    """One broken rule: `path` relative to the artifact, and both sides of the comparison."""

    path: str
    rule: Rule
    found: str
    expected: str

    def __str__(self) -> str:
        return f"{self.path}: {self.rule}: found {self.found}, expected {self.expected}"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was compared. Without `full` only names, kinds and sizes were, not contents."""

    digest: str
    files: int
    size_bytes: int
    full: bool
    faults: tuple[FileFault, ...]

    @property
    def passed(self) -> bool:
        """Whether every rule held."""
        return not self.faults


def verify_artifact(artifact: Artifact, *, full: bool = True) -> VerifyReport:
    """Compare every file with the manifest, and the manifest with the digest.

    Links are never followed. Collects all faults; raises StorageError only for
    what can't be read.
    """
    with reading(artifact.folder):
        faults = tuple(_faults(artifact, full=full))
    return VerifyReport(
        artifact.digest, len(artifact.manifest.files), artifact.size_bytes, full=full, faults=faults
    )


def require_verified(artifact: Artifact, *, full: bool = True) -> VerifyReport:
    """`verify_artifact`, raising IntegrityError that names the first fault's file and rule."""
    report = verify_artifact(artifact, full=full)
    _require_none(artifact, report.faults)
    return report


def require_contents(artifact: Artifact, paths: Iterable[str]) -> None:
    """Compare the contents of some of the manifest's files. Raises IntegrityError naming the first."""
    with reading(artifact.folder):
        found = (
            _content_fault(artifact.folder, path, artifact.manifest.files[path].sha256) for path in paths
        )
        _require_none(artifact, tuple(fault for fault in found if fault))


def _require_none(artifact: Artifact, faults: Sequence[FileFault]) -> None:
    if not faults:
        return
    first, *others = faults
    more = f" (and {len(others)} more)" if others else ""
    raise IntegrityError(
        f"artifact {artifact.name}: {first.path}: {first.rule}{more}",
        found=first.found,
        expected=first.expected,
        hint="the artifact is damaged; build or pull it again",
        details=[str(fault) for fault in faults],
    )


def _faults(artifact: Artifact, *, full: bool) -> Iterator[FileFault]:
    folder = artifact.folder
    stored_as = folder.name
    if stored_as.startswith("sha256-") and stored_as != folder_of(artifact.digest):
        yield FileFault(MANIFEST_FILE, "digest", folder_of(artifact.digest), stored_as)
    tree = read_tree(folder)
    yield from _stray_entries(artifact, tree)
    if (size := tree.files.get(MANIFEST_FILE)) is None:
        yield FileFault(MANIFEST_FILE, "missing", tree.odd.get(MANIFEST_FILE, "nothing"), "a regular file")
    elif full and (fault := _content_fault(folder, MANIFEST_FILE, artifact.digest.removeprefix("sha256:"))):
        yield fault
    elif size != artifact.manifest_size:
        yield FileFault(MANIFEST_FILE, "size", str(size), str(artifact.manifest_size))
    for path, entry in artifact.manifest.files.items():
        size = tree.files.get(path)
        if size is None:
            if path not in tree.odd:
                yield FileFault(path, "missing", "nothing", "a regular file")
        elif size != entry.size:
            yield FileFault(path, "size", f"{size} bytes", f"{entry.size} bytes")
        elif full and (fault := _content_fault(folder, path, entry.sha256)):
            yield fault


def _stray_entries(artifact: Artifact, tree: Tree) -> Iterator[FileFault]:
    for path, kind in sorted(tree.odd.items()):
        yield FileFault(path, "kind", kind, "regular files and folders only")
    listed = {*artifact.manifest.files, MANIFEST_FILE}
    for path in sorted(tree.files.keys() - listed):
        yield FileFault(path, "extra", "a file", "nothing: the manifest does not list it")
    parents = {str(parent) for path in listed for parent in PurePosixPath(path).parents}
    for path in sorted(tree.folders - parents):
        yield FileFault(path, "extra", "a folder", "nothing: no listed file lies in it")


def _content_fault(folder: Path, path: str, expected: str) -> FileFault | None:
    found = sha256_file(folder / path)
    return None if found == expected else FileFault(path, "sha256", found, expected)
