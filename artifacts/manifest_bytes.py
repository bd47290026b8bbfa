"""`manifest.json` as bytes: written in one spelling, read with every rule checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import TypeAdapter

from gristmill.artifacts.manifest import SCHEMA_VERSION, Manifest, group_schemes
from gristmill.artifacts.reading import read_bounded
from gristmill.artifacts.strict_json import parse_canonical, parse_object, to_canonical
from gristmill.runtime.errors import ArtifactError

__all__ = [
    "MANIFEST_FILE",
    "MAX_MANIFEST_BYTES",
    "RECIPE_FILE",
    "manifest_bytes",
    "parse_manifest",
    "read_manifest",
]

MANIFEST_FILE = "manifest.json"
RECIPE_FILE = "recipe.yaml"
MAX_MANIFEST_BYTES = 16 << 20

_ADAPTER = TypeAdapter(Manifest)
_REQUIRED_FILES = (RECIPE_FILE, "checkpoint/config.json")
_PLACES = ("checkpoint", "engines", "exports", "golden", "provenance", "report")


def manifest_bytes(manifest: Manifest) -> bytes:
    """The canonical bytes of a manifest. Raises ArtifactError for what a reader would refuse."""
    data = to_canonical(_ADAPTER, manifest, MANIFEST_FILE)
    parse_manifest(data)
    return data


def read_manifest(folder: Path) -> tuple[Manifest, bytes]:
    """The manifest of an artifact's folder and its bytes. Raises ArtifactError naming file and rule."""
    path = folder / MANIFEST_FILE
    data = read_bounded(path, MAX_MANIFEST_BYTES)
    return parse_manifest(data, path), data


def parse_manifest(data: bytes, file: Path | str = MANIFEST_FILE) -> Manifest:
    """Inverse of `manifest_bytes`; anything else raises ArtifactError naming `file` and the rule."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise ArtifactError(f"{file}: size", found=len(data), expected=f"at most {MAX_MANIFEST_BYTES}")
    version = parse_object(data, file).get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise ArtifactError(
            f"{file}: schema_version",
            found=repr(version),
            expected=SCHEMA_VERSION,
            hint="read it with a newer gristmill, or build it again",
        )
    manifest = parse_canonical(_ADAPTER, data, file)
    faults = list(_faults(manifest))
    if faults:
        raise ArtifactError(f"{file}: {faults[0]}", details=faults)
    return manifest


def _faults(manifest: Manifest) -> Iterator[str]:
    yield from _file_faults(manifest)
    yield from _scheme_faults(manifest)
    yield from _engine_faults(manifest)
    worst_first = sorted(manifest.layer_errors, key=lambda layer: (-layer.error, layer.linear))
    if list(manifest.layer_errors) != worst_first:
        yield "layer_errors: not sorted, largest error first"


def _file_faults(manifest: Manifest) -> Iterator[str]:
    for path in manifest.files:
        place, slash, _ = path.partition("/")
        if not (path == RECIPE_FILE or (slash and place in _PLACES)):
            yield f"files: {path}: not in one of {', '.join(_PLACES)}"
    for path in _REQUIRED_FILES:
        if path not in manifest.files:
            yield f"files: {path}: missing"
    recipe = manifest.files.get(RECIPE_FILE)
    if recipe and manifest.lineage.recipe != f"sha256:{recipe.sha256}":
        yield f"lineage.recipe: not the digest of {RECIPE_FILE}"


def _scheme_faults(manifest: Manifest) -> Iterator[str]:
    quantized = [linear for group in manifest.schemes for linear in group.linears]
    if len(set(quantized)) != len(quantized):
        yield "schemes: a linear is listed twice"
    elif group_schemes(manifest.scheme_of) != manifest.schemes:
        yield "schemes: not grouped and sorted by scheme, then by linear"
    if sorted(set(manifest.skipped)) != list(manifest.skipped):
        yield "skipped: not sorted, or a linear is listed twice"
    if both := set(quantized) & set(manifest.skipped):
        yield f"skipped: {min(both)} is quantized too"


def _engine_faults(manifest: Manifest) -> Iterator[str]:
    targets = [engine.target for engine in manifest.engines]
    if sorted(set(targets)) != targets:
        yield "engines: not sorted by target, or a target is listed twice"
    stored = {path.split("/")[1] for path in manifest.files if path.startswith("engines/")}
    if stored != set(targets) - {"reference"}:
        yield f"engines: files of {sorted(stored)} are stored, {sorted(set(targets) - {'reference'})} listed"
    if any(engine.golden for engine in manifest.engines) and "golden/prompts.json" not in manifest.files:
        yield "files: golden/prompts.json: missing, though an engine is proven against it"
    used = {*manifest.validation, *(gate.engine for gate in manifest.gates)}
    if unknown := used - set(targets):
        yield f"validation: {min(unknown)} is not one of the engines"
