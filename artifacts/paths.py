"""What lies in an artifact's folder: portable relative paths and regular files, nothing else."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Tree", "path_fault", "read_tree"]

_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+@=-]*")
_MAX_PATH = 512
_MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class Tree:
    """A folder's content, no link followed: `files` maps path to size, `odd` maps path to what it is."""

    files: dict[str, int]
    folders: frozenset[str]
    odd: dict[str, str]


def path_fault(path: str) -> str | None:
    """Why `path` can't be a file of an artifact, or None."""
    if path.startswith("/"):
        return "an absolute path"
    segments = path.split("/")
    if ".." in segments:
        return "a path that climbs out of the artifact"
    if not all(_SEGMENT.fullmatch(segment) for segment in segments):
        return "a path whose parts are not A-Z a-z 0-9 . _ + @ = -, or start with . or -"
    if len(path) > _MAX_PATH or len(segments) > _MAX_DEPTH:
        return f"a path over {_MAX_PATH} characters or {_MAX_DEPTH} levels"
    return None


def read_tree(folder: Path) -> Tree:
    """Every entry below `folder`, with paths in POSIX form."""
    files: dict[str, int] = {}
    folders: set[str] = set()
    odd: dict[str, str] = {}
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        with os.scandir(folder / prefix) as entries:
            for entry in entries:
                path = f"{prefix}{entry.name}"
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    files[path] = status.st_size
                elif stat.S_ISDIR(status.st_mode):
                    folders.add(path)
                    waiting.append(f"{path}/")
                else:
                    odd[path] = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "a special file"
    return Tree(files, frozenset(folders), odd)
