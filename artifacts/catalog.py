"""Looking into a store: what there is, and which artifact a REF means. Nothing here writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from gristmill.artifacts.artifact import Artifact, open_artifact
from gristmill.artifacts.layout import StoreLayout
from gristmill.artifacts.manifest_bytes import MANIFEST_FILE
from gristmill.artifacts.names import folder_of, is_digest
from gristmill.artifacts.record import read_record
from gristmill.artifacts.refs import DEFAULT_TAG, StoreRef
from gristmill.artifacts.tags import each_tag, read_tag
from gristmill.artifacts.verify import require_verified
from gristmill.runtime.errors import ArtifactError, GristmillError, IntegrityError

__all__ = ["ArtifactRow", "find", "list_rows"]


@dataclass(frozen=True, slots=True)
class ArtifactRow:
    """One line of `list`.

    `tag` is None for an artifact that no tag points to, `created` where no
    build record says. A row with a `fault` is damaged: it can't be used, and
    what is unknown of it is None.
    """

    name: str | None
    tag: str | None
    digest: str | None
    size_bytes: int | None
    created: str | None
    fault: str | None = None


def list_rows(layout: StoreLayout) -> tuple[ArtifactRow, ...]:
    """Every tag and every artifact without one, sorted by name and tag.

    Damage becomes a row, not an error: it must not hide what is sound.
    """
    rows = [_tag_row(layout, name, tag) for name, tag in each_tag(layout)]
    tagged = {row.digest for row in rows}
    rows += [_row(layout, digest) for digest in _each_digest(layout) if digest not in tagged]
    return tuple(sorted(rows, key=lambda row: (row.name or "~", row.tag or "~", row.digest or "")))


def find(layout: StoreLayout, ref: StoreRef) -> Artifact:
    """The artifact that `ref` means; its manifest is checked against its digest, its files are not yet.

    Raises ArtifactError if there is none, naming what is near, or if its
    manifest is refused, and IntegrityError if tag, folder and manifest disagree.
    """
    if ref.digest_prefix is None:
        tag = ref.tag or DEFAULT_TAG
        digest = read_tag(layout, ref.name, tag)
        if digest is None:
            raise _not_found(layout, ref)
        return _open(layout, digest, ref.name, tag)
    matches = [digest for digest in _each_digest(layout) if digest.startswith(ref.digest_prefix)]
    if len(matches) > 1:
        raise ArtifactError(
            f"{ref}: more than one artifact", found=", ".join(matches), hint="give more digits"
        )
    if not matches or ref.name not in (names := _names_of(layout, matches[0])):
        found = f"{matches[0]} as {', '.join(sorted(names))}" if matches else None
        raise _not_found(layout, ref, found)
    still_there = ref.tag is not None and read_tag(layout, ref.name, ref.tag) == matches[0]
    return _open(layout, matches[0], ref.name, ref.tag if still_there else None)


def _open(layout: StoreLayout, digest: str, name: str | None, tag: str | None) -> Artifact:
    folder = layout.artifact(digest)
    if not folder.is_dir():
        raise IntegrityError(
            f"tag {name}:{tag} points to {digest}, which the store does not hold",
            hint="build or pull it again",
        )
    artifact = open_artifact(folder, name, tag)
    if artifact.digest != digest:
        raise IntegrityError(
            f"artifact {artifact.name}: {MANIFEST_FILE}: digest",
            found=artifact.digest,
            expected=digest,
            hint="the artifact is damaged; build or pull it again",
        )
    return artifact


def _not_found(layout: StoreLayout, ref: StoreRef, found: str | None = None) -> ArtifactError:
    known = list(each_tag(layout))
    tags = [f"{name}:{tag}" for name, tag in known if name == ref.name]
    near = tags or get_close_matches(ref.name, {name for name, _ in known}, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "`gristmill list` shows what there is"
    if Path(ref.name).is_dir():
        hint = f"for the folder write ./{ref.name}"
    return ArtifactError(f"no artifact {ref} in {layout.root}", found=found, hint=hint)


def _each_digest(layout: StoreLayout) -> Iterator[str]:
    if not layout.artifacts.is_dir():
        return
    for name in sorted(path.name for path in layout.artifacts.iterdir()):
        digest = name.replace("-", ":", 1)
        if is_digest(digest) and folder_of(digest) == name:
            yield digest


def _names_of(layout: StoreLayout, digest: str) -> set[str]:
    """The name in the manifest and the names of all tags that point to an artifact."""
    names = {row.name for row in list_rows(layout) if row.digest == digest}
    return {open_artifact(layout.artifact(digest)).manifest.name, *(name for name in names if name)}


def _tag_row(layout: StoreLayout, name: str, tag: str) -> ArtifactRow:
    try:
        digest = read_tag(layout, name, tag)
    except GristmillError as error:
        return ArtifactRow(name, tag, None, None, None, fault=error.line())
    if digest is None:
        return ArtifactRow(name, tag, None, None, None, fault=f"tag {name}:{tag} has just been removed")
    return _row(layout, digest, name, tag)


def _row(layout: StoreLayout, digest: str, name: str | None = None, tag: str | None = None) -> ArtifactRow:
    try:
        artifact = _open(layout, digest, name, tag)
        require_verified(artifact, full=False)
    except GristmillError as error:
        return ArtifactRow(name, tag, digest, None, _created(layout, digest), fault=error.line())
    return ArtifactRow(artifact.name, tag, digest, artifact.size_bytes, _created(layout, digest))


def _created(layout: StoreLayout, digest: str) -> str | None:
    try:
        return read_record(layout.record(digest)).created
    except GristmillError:
        return None
