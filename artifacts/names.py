"""The words of a REF: artifact names, tags and digests."""

from __future__ import annotations

import hashlib
import re

from gristmill.runtime.errors import ArtifactError

__all__ = [
    "DIGEST_PATTERN",
    "NAME_PATTERN",
    "TAG_PATTERN",
    "check_digest",
    "check_name",
    "check_tag",
    "digest_of",
    "folder_of",
    "is_digest",
    "is_name",
    "is_tag",
]

NAME_PATTERN = r"[a-z0-9](?:[a-z0-9._-]{0,126}[a-z0-9])?"
TAG_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"
DIGEST_PATTERN = r"sha256:[0-9a-f]{64}"


def is_name(text: str) -> bool:
    """Whether `text` can name an artifact."""
    return re.fullmatch(NAME_PATTERN, text) is not None


def is_tag(text: str) -> bool:
    """Whether `text` can be a tag (the rule of OCI registries)."""
    return re.fullmatch(TAG_PATTERN, text) is not None


def is_digest(text: str) -> bool:
    """Whether `text` is a whole digest, `sha256:` and 64 small hex digits."""
    return re.fullmatch(DIGEST_PATTERN, text) is not None


def check_name(text: str) -> str:
    """`text` if it can name an artifact. Raises ArtifactError."""
    if is_name(text):
        return text
    raise ArtifactError(
        "artifact name",
        found=repr(text),
        expected="1 to 128 of a-z 0-9 . _ -, with a letter or digit first and last",
    )


def check_tag(text: str) -> str:
    """`text` if it can be a tag. Raises ArtifactError."""
    if is_tag(text):
        return text
    raise ArtifactError(
        "artifact tag",
        found=repr(text),
        expected="1 to 128 of A-Z a-z 0-9 . _ -, with no . or - first",
    )


def check_digest(text: str) -> str:
    """`text` if it is a whole digest. Raises ArtifactError."""
    if is_digest(text):
        return text
    raise ArtifactError("artifact digest", found=repr(text), expected="sha256: and 64 hex digits")


def digest_of(data: bytes) -> str:
    """`sha256:...` of some bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def folder_of(digest: str) -> str:
    """A digest as a file name: `sha256-...`."""
    return digest.replace(":", "-", 1)
