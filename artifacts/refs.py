"""REFs as the user writes them: `name`, `name:tag`, `name@sha256:...` or a folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from gristmill.artifacts.names import check_name, check_tag
from gristmill.runtime.errors import ArtifactError, UnsupportedError

__all__ = ["DEFAULT_TAG", "MIN_DIGEST_PREFIX", "FolderRef", "StoreRef", "parse_ref"]

DEFAULT_TAG = "latest"
MIN_DIGEST_PREFIX = 12


@dataclass(frozen=True, slots=True)
class FolderRef:
    """An artifact outside any store."""

    folder: Path


@dataclass(frozen=True, slots=True)
class StoreRef:
    """An artifact in the store.

    `digest_prefix` is `sha256:` and at least 12 hex digits; it wins over `tag`.
    """

    name: str
    tag: str | None = None
    digest_prefix: str | None = None

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest_prefix}" if self.digest_prefix else ""
        return f"{self.name}{tag}{digest}"


def parse_ref(text: str) -> FolderRef | StoreRef:
    """What `text` means, by its form alone: a `/`, or a `.` or `~` in front, makes it a folder.

    Raises ArtifactError for a malformed REF, UnsupportedError for `oci://`.
    """
    if text.startswith("oci://"):
        raise UnsupportedError(
            f"{text}: this version reads no registry", hint="use an artifact of the store or a folder"
        )
    if "/" in text or text.startswith((".", "~")):
        return FolderRef(Path(text).expanduser())
    rest, at, digest = text.partition("@")
    name, colon, tag = rest.partition(":")
    check_name(name)
    if colon:
        check_tag(tag)
    if at and not re.fullmatch(rf"sha256:[0-9a-f]{{{MIN_DIGEST_PREFIX},64}}", digest):
        raise ArtifactError(
            f"REF {text}: digest",
            found=repr(digest),
            expected=f"sha256: and {MIN_DIGEST_PREFIX} to 64 hex digits",
        )
    return StoreRef(name, tag or None, digest or None)
