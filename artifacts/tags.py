"""Tags: the only moving part of a store. `tags/<name>/<tag>` holds one digest and a newline."""

from __future__ import annotations

from collections.abc import Iterator

from gristmill.artifacts.layout import StoreLayout
from gristmill.artifacts.names import is_digest, is_name, is_tag
from gristmill.artifacts.reading import read_bounded
from gristmill.runtime.errors import IntegrityError

__all__ = ["each_tag", "read_tag", "tag_bytes"]

_TAG_BYTES = 72


def tag_bytes(digest: str) -> bytes:
    """A tag file's content."""
    return f"{digest}\n".encode()


def read_tag(layout: StoreLayout, name: str, tag: str) -> str | None:
    """The digest that a tag points to, None if there is no such tag.

    Raises IntegrityError if the tag's file is damaged.
    """
    path = layout.tag(name, tag)
    if not path.exists() and not path.is_symlink():
        return None
    text = read_bounded(path, _TAG_BYTES).decode("ascii", "replace")
    digest = text.removesuffix("\n")
    if not text.endswith("\n") or not is_digest(digest):
        raise IntegrityError(f"tag {path}", found=repr(text), expected="sha256: and 64 hex digits, one line")
    return digest


def each_tag(layout: StoreLayout) -> Iterator[tuple[str, str]]:
    """Every name and tag, sorted; files that can't be tags (such as temporary ones) are passed over."""
    if not layout.tags.is_dir():
        return
    for name in sorted(path.name for path in layout.tags.iterdir() if is_name(path.name) and path.is_dir()):
        for tag in sorted(path.name for path in (layout.tags / name).iterdir() if is_tag(path.name)):
            yield name, tag
