"""The digest of a source model: over what it holds, not over where it lies."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from gristmill.runtime.errors import ModelError
from gristmill.runtime.files import canonical_json, sha256_file

__all__ = ["content_digest"]


def content_digest(
    config: Mapping[str, Any],
    side_files: Mapping[str, bytes],
    weights: Mapping[str, Path],
    layout: Any = None,
) -> str:
    """`sha256:...` over configuration, side files and weight files.

    `weights` names each weight file in a way that does not depend on its
    folder; `layout` is any further JSON value that decides what is read from
    them. A file's own digest is remembered, in memory, until its size, time
    of change or inode differ.
    """
    content = {
        "config": config,
        "side_files": {name: hashlib.sha256(data).hexdigest() for name, data in side_files.items()},
        "weights": {name: _file_digest(path) for name, path in weights.items()},
        "layout": layout,
    }
    return f"sha256:{hashlib.sha256(canonical_json(content)).hexdigest()}"


def _file_digest(path: Path) -> str:
    try:
        status = path.stat()
        return _remembered(path.resolve(), status.st_size, status.st_mtime_ns, status.st_ino)
    except OSError as error:
        raise ModelError(f"can't read {path}", found=error.strerror) from error


@lru_cache(maxsize=256)
def _remembered(path: Path, size: int, mtime_ns: int, inode: int) -> str:
    """The arguments after `path` are there to forget a file that changed."""
    return sha256_file(path)
