"""The JSON of `gristmill inspect` and `gristmill list`: the public contract, key by key."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from gristmill.artifacts.artifact import Artifact
from gristmill.artifacts.store import Store

__all__ = ["damage", "inspection", "listing"]


def inspection(artifact: Artifact) -> dict[str, Any]:
    """`inspect --json`. Sizes are in bytes; `calibration` is None for data-free methods."""
    manifest = artifact.manifest
    lineage = manifest.lineage
    layers = Counter[str]()
    for group in manifest.schemes:
        layers[group.name] += len(group.linears)
    return {
        "name": artifact.name,
        "tag": artifact.tag,
        "digest": artifact.digest,
        "parent": lineage.parent,
        "base_model": asdict(lineage.base_model),
        "schemes": dict(layers),
        "bits_per_weight": asdict(manifest.bits_per_weight),
        "size_bytes": {
            "checkpoint": manifest.size_of("checkpoint/"),
            "engines": manifest.size_of("engines/"),
            "total": artifact.size_bytes,
        },
        "engines": [asdict(engine) for engine in manifest.engines],
        "validation": {engine: asdict(result) for engine, result in manifest.validation.items()},
        "calibration": asdict(lineage.calibration) if lineage.calibration else None,
        "provenance": {
            "recipe": lineage.recipe,
            "versions": dict(manifest.determinism.versions),
            "attestation": None,
            "signatures": [],
        },
    }


def listing(store: Store) -> list[dict[str, Any]]:
    """`list --json`: the artifacts that can be used. `damage` has the others."""
    return [
        {
            "name": row.name,
            "tag": row.tag,
            "digest": row.digest,
            "size_bytes": row.size_bytes,
            "created": row.created,
        }
        for row in store.list()
        if row.fault is None
    ]


def damage(store: Store) -> list[str]:
    """One line for each damaged artifact or tag of the store, for stderr."""
    return [row.fault for row in store.list() if row.fault is not None]
