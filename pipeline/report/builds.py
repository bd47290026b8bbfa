"""All builds of one base model in a store, measured on the same text: size against quality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isclose

from gristmill.artifacts.artifact import Artifact, open_artifact
from gristmill.artifacts.engines import REFERENCE
from gristmill.artifacts.manifest import Manifest
from gristmill.artifacts.store import Store

__all__ = ["BuildPoint", "Builds", "comparable_builds", "measured_engine"]

_SAME_TEXT = 1e-3
"""Relative difference of the original's perplexity below which two builds were measured on the same text:
number formats of other machines change it by less, other text by more."""


@dataclass(frozen=True, slots=True)
class BuildPoint:
    """One build. `best` is none that is both smaller and closer to the original; KL in nats."""

    label: str
    digest: str
    engine: str
    schemes: tuple[str, ...]
    size_bytes: int
    bits_per_weight: float
    kl_mean: float
    perplexity: float
    top1_agreement: float
    present: bool
    best: bool = False


@dataclass(frozen=True, slots=True)
class Builds:
    """The builds that can be compared, smallest first, and how many can't be, by reason."""

    points: tuple[BuildPoint, ...] = ()
    other_models: int = 0
    other_text: int = 0
    unmeasured: int = 0
    damaged: int = 0


def measured_engine(manifest: Manifest) -> str | None:
    """The engine whose validation stands for the artifact: the gates', else a compiled one, else any."""
    gated = {gate.engine for gate in manifest.gates}
    order = sorted(manifest.validation, key=lambda name: (name not in gated, name == REFERENCE, name))
    return order[0] if order else None


def comparable_builds(store: Store, artifact: Artifact) -> Builds:
    """Compare `artifact` with the others of `store`; it need not be one of them. Raises StorageError."""
    rows = store.list() if store.path.is_dir() else ()
    sound = {row.digest: row for row in reversed(rows) if row.digest is not None and row.fault is None}
    counts = dict.fromkeys(("other_models", "other_text", "unmeasured"), 0)
    points = [_point(artifact, present=True)]
    for digest in sorted(sound.keys() - {artifact.digest}):
        row = sound[digest]
        other = open_artifact(store.layout.artifact(digest), row.name, row.tag)
        reason = _obstacle(artifact.manifest, other.manifest)
        if reason is None:
            points.append(_point(other))
        else:
            counts[reason] += 1
    damaged = sum(row.fault is not None for row in rows)
    return Builds(_marked([point for point in points if point is not None]), **counts, damaged=damaged)


def _obstacle(ours: Manifest, theirs: Manifest) -> str | None:
    """Why two builds can't be compared, by the name of its count."""
    if ours.lineage.base_model.digest != theirs.lineage.base_model.digest:
        return "other_models"
    own, other = measured_engine(ours), measured_engine(theirs)
    if own is None or other is None:
        return "unmeasured"
    base, found = ours.validation[own].perplexity.base, theirs.validation[other].perplexity.base
    return None if isclose(base, found, rel_tol=_SAME_TEXT) else "other_text"


def _point(artifact: Artifact, *, present: bool = False) -> BuildPoint | None:
    manifest = artifact.manifest
    engine = measured_engine(manifest)
    if engine is None:
        return None
    result = manifest.validation[engine]
    return BuildPoint(
        label=f"{artifact.name}:{artifact.tag}" if artifact.tag else artifact.name,
        digest=artifact.digest,
        engine=engine,
        schemes=tuple(dict.fromkeys(group.name for group in manifest.schemes)),
        size_bytes=manifest.size_of("checkpoint/"),
        bits_per_weight=manifest.bits_per_weight.whole_model,
        kl_mean=result.kl.mean,
        perplexity=result.perplexity.quantized,
        top1_agreement=result.top1_agreement,
        present=present,
    )


def _marked(points: Sequence[BuildPoint]) -> tuple[BuildPoint, ...]:
    """In order of size, with `best` set where nothing smaller is as close to the original."""
    found: list[BuildPoint] = []
    closest = float("inf")
    for point in sorted(points, key=lambda point: (point.size_bytes, point.kl_mean)):
        found.append(replace(point, best=point.kl_mean < closest))
        closest = min(closest, point.kl_mean)
    return tuple(found)
