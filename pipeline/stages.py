"""The stage cache: each stage's result under the hash of all that determines it.

<root>/<stage>/<key>/            finished: files and `index.json` with their sizes and hashes
<root>/<stage>/<key>.partial/    in work; survives a kill, so that what is whole in it is used again
<root>/<stage>/<key>.lock        held by the build that works on it
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from gristmill.artifacts.blobs import link_or_copy
from gristmill.artifacts.locks import exclusive_lock
from gristmill.artifacts.manifest import FileEntry
from gristmill.artifacts.paths import read_tree
from gristmill.artifacts.reading import read_bounded, reading
from gristmill.artifacts.strict_json import parse_canonical, to_canonical
from gristmill.runtime.errors import ArtifactError, InternalError
from gristmill.runtime.files import (
    canonical_json,
    fsync_folder,
    make_folder,
    sha256_file,
    storage_errors,
    write_atomic,
)

__all__ = ["OpenStage", "StageCache", "code_version", "stage_key"]

_INDEX_FILE = "index.json"
_MAX_INDEX_BYTES = 16 << 20
_SOURCE_SUFFIXES = {".py", ".cpp", ".h", ".hpp", ".inl"}
_INDEX = TypeAdapter(dict[str, FileEntry])


def stage_key(stage: str, inputs: Mapping[str, Any], code: str) -> str:
    """The hex name of a stage's result: a hash of its inputs and settings (JSON values) and its code."""
    return hashlib.sha256(canonical_json({"stage": stage, "inputs": inputs, "code": code})).hexdigest()


def code_version(modules: Sequence[str]) -> str:
    """A hex hash over the source files of modules and packages, such as `gristmill.pipeline.quantize`.

    Only contents and paths relative to the module count, not where it is installed.
    """
    digest = hashlib.sha256()
    for module in sorted(modules):
        for name, path in _sources(module):
            digest.update(f"{module}\0{name}\0{sha256_file(path)}\n".encode())
    return digest.hexdigest()


def _sources(module: str) -> Iterator[tuple[str, Path]]:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise InternalError(f"no source files of module {module}")
    if spec.submodule_search_locations is None:
        yield "", Path(spec.origin)
        return
    folder = Path(spec.origin).parent
    for path in sorted(folder.rglob("*")):
        if path.suffix in _SOURCE_SUFFIXES and path.is_file():
            yield path.relative_to(folder).as_posix(), path


@dataclass(frozen=True, slots=True)
class OpenStage:
    """A stage in work. Write each file of `folder` with `write_atomic`, then call `finish`."""

    folder: Path
    final: Path

    def finish(self) -> Path:
        """Seal the folder with an index and give it its final name. Raises StorageError.

        Returns the finished folder. One that is already there is kept if it
        is sound, because another build may be reading it, and replaced if not.
        """
        with storage_errors(self.folder):
            if self.final.exists() and _is_sound(self.final):
                shutil.rmtree(self.folder)
                return self.final
            _seal(self.folder)
            if self.final.exists():
                shutil.rmtree(self.final)
            self.folder.replace(self.final)
            fsync_folder(self.final.parent)
        return self.final


class StageCache:
    """Finished and half-done stages below `root`. Safe for any number of processes.

    `reused` names the stages that were found finished.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.reused: set[str] = set()

    def finished(self, stage: str, key: str) -> Path | None:
        """The folder of a finished stage, every byte compared with its index; None if absent or damaged."""
        folder = self.root / stage / key
        if not (folder.is_dir() and _is_sound(folder)):
            return None
        self.reused.add(stage)
        return folder

    def missing(self, stage: str, key: str, size: int) -> int:
        """Bytes of `size` that the stage's partial folder lacks; 0 for a finished one, unchecked."""
        final = self.root / stage / key
        if final.exists():
            return 0
        partial = final.with_name(f"{key}.partial")
        present = read_tree(partial).files.values() if partial.is_dir() else ()
        return max(0, size - sum(present))

    @contextmanager
    def open(self, stage: str, key: str) -> Iterator[OpenStage]:
        """Work on a stage: its partial folder, with what an earlier build finished, until `finish`.

        The partial folder stays if the body fails or is killed. Raises
        BusyError if another build works on the same stage, StorageError.
        """
        final = self.root / stage / key
        make_folder(final.parent)
        lock = final.with_name(f"{key}.lock")
        hint = "wait for that build, or stop it and run again: what it finished is used"
        with exclusive_lock(lock, f"stage {stage} of this recipe", hint):
            partial = final.with_name(f"{key}.partial")
            with storage_errors(partial):
                if final.exists() and not partial.exists():
                    _take_back(final, partial)
                partial.mkdir(exist_ok=True)
                _remove_temporary(partial)
            yield OpenStage(partial, final)


def _seal(folder: Path) -> None:
    """Sync all that is in `folder` and list it, with hashes, in its index."""
    (folder / _INDEX_FILE).unlink(missing_ok=True)
    files = read_tree(folder).files
    for path in files:
        _sync(folder / path)
    index = {path: FileEntry(size, sha256_file(folder / path)) for path, size in files.items()}
    write_atomic(folder / _INDEX_FILE, to_canonical(_INDEX, index, _INDEX_FILE))
    for inner, _, _ in os.walk(folder, topdown=False):
        fsync_folder(Path(inner))


def _take_back(final: Path, partial: Path) -> None:
    """Start again from what is sound in a finished folder, leaving that folder as it is."""
    partial.mkdir()
    present = read_tree(final).files
    for path, entry in (_read_index(final) or {}).items():
        if path in present and not _fault(final, path, entry):
            (partial / path).parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(final / path, partial / path)


def _remove_temporary(partial: Path) -> None:
    for path in read_tree(partial).files:
        name = path.rpartition("/")[2]
        if name.startswith(".") and name.endswith(".tmp"):
            (partial / path).unlink()


def _is_sound(folder: Path) -> bool:
    with reading(folder):
        index = _read_index(folder)
        present = read_tree(folder).files.keys() - {_INDEX_FILE}
        return (
            index is not None
            and present == index.keys()
            and not any(_fault(folder, path, entry) for path, entry in index.items())
        )


def _read_index(folder: Path) -> dict[str, FileEntry] | None:
    """The index, or None if it is damaged and so proves nothing about any file."""
    try:
        return parse_canonical(_INDEX, read_bounded(folder / _INDEX_FILE, _MAX_INDEX_BYTES), _INDEX_FILE)
    except ArtifactError:
        return None


def _fault(folder: Path, path: str, entry: FileEntry) -> bool:
    file = folder / path
    return file.stat().st_size != entry.size or sha256_file(file) != entry.sha256


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
