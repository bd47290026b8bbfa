"""A native engine's two files, `plan.json` and `weights.bin`, checked before a byte of them is used.

`plan.json` holds the model plan and where each tensor lies in `weights.bin`,
whose first 4096 bytes are a header: magic, layout version (uint32), file size
(uint64) and the SHA-256 of `plan.json` without its entry `weights`, little
endian, then zeros. `weights` in turn holds the size and the SHA-256 of
`weights.bin`, so that neither file can be exchanged without the other.
"""

from __future__ import annotations

import gc
import hashlib
import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gristmill.runtime.errors import ArtifactError, InputError, IntegrityError
from gristmill.runtime.executors.native.plan_check import check_plan
from gristmill.runtime.executors.native.stored import EngineFile, StoredBlock, StoredTensor, StoredWeight
from gristmill.runtime.executors.native.stored_check import HEADER_BYTES, check_stored
from gristmill.runtime.files import canonical_json, sha256_file
from gristmill.runtime.kernels.layout import LAYOUT_VERSION
from gristmill.runtime.kv_scales import LayerKVScales, check_kv_scales
from gristmill.runtime.model_plan import ModelPlan
from gristmill.runtime.strict_json import from_json

__all__ = [
    "HEADER_BYTES",
    "PLAN_FILE",
    "WEIGHTS_FILE",
    "EngineFile",
    "StoredBlock",
    "StoredTensor",
    "StoredWeight",
    "header_bytes",
    "header_for",
    "plan_bytes",
    "read_engine_file",
    "verify_engine_file",
]

PLAN_FILE = "plan.json"
WEIGHTS_FILE = "weights.bin"

_FORMAT = "gristmill-native"
_KV_SCALES = "kv_scales"
_MAGIC = b"GRISTMILL-NATIVE"
_HEADER = struct.Struct("<16sIQ32s")
_MOST_PLAN_BYTES = 1 << 28  # the largest mixtures have some millions
_AGAIN = "compile it again with `gristmill compile REF --target native-x86`"


@dataclass(frozen=True, slots=True)
class _WeightsFile:
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class _PlanFile:
    """`plan.json`, key by key; `kv_scales` is left out where there are none."""

    format: str
    layout_version: int
    model: ModelPlan
    weights: _WeightsFile
    layers: tuple[StoredBlock, ...]
    embedding: StoredTensor
    final_norm: StoredTensor
    head: StoredWeight
    kv_scales: tuple[LayerKVScales, ...]


def read_engine_file(folder: Path) -> EngineFile:
    """Read an engine folder and check everything but the contents of its tensors.

    Raises ArtifactError for a file that is missing, of another layout version
    or wrong in itself, and IntegrityError for a weights file that is not the
    one that the plan file describes.
    """
    with _without_collecting():
        engine, digest = _read_plan(folder)
    _check_weights_file(engine, digest)
    return engine


def verify_engine_file(folder: Path) -> EngineFile:
    """As `read_engine_file`, and compare the hash of the whole weights file."""
    engine = read_engine_file(folder)
    _require(f"{engine.path}: sha256", sha256_file(engine.path), engine.sha256)
    return engine


def plan_bytes(engine: EngineFile) -> bytes:
    """The plan file of an engine. Equal engines have equal bytes."""
    weights = _WeightsFile(engine.bytes, engine.sha256)
    stored = (engine.layers, engine.embedding, engine.final_norm, engine.head, engine.kv_scales)
    value = asdict(_PlanFile(_FORMAT, LAYOUT_VERSION, engine.plan, weights, *stored))
    if not engine.kv_scales:
        del value[_KV_SCALES]
    return canonical_json(value)


def header_bytes(engine: EngineFile) -> bytes:
    """The header of an engine's weights file; `engine.sha256` has no part in it."""
    return header_for(plan_bytes(engine), engine.bytes)


def header_for(plan: bytes, size: int) -> bytes:
    """The header of the weights file of `size` bytes that a plan file describes."""
    return _HEADER.pack(_MAGIC, LAYOUT_VERSION, size, _description_hash(plan)).ljust(HEADER_BYTES, b"\0")


@contextmanager
def _without_collecting() -> Iterator[None]:
    """For ten thousands of values that all stay: the collector would go through them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _read_plan(folder: Path) -> tuple[EngineFile, bytes]:
    """What the plan file says, checked in itself, and the hash of its description."""
    path = folder / PLAN_FILE
    data, value = _read_json(path)
    _check_version(path, value.get("layout_version"))
    try:
        engine = _engine(folder, from_json(_PlanFile, {_KV_SCALES: (), **value}, "plan"))
        check_plan(engine.plan)
        check_kv_scales(engine.kv_scales, engine.plan)
        check_stored(engine)
    except InputError as error:
        found, expected = error.found, error.expected
        raise ArtifactError(f"{path}: {error.what}", found=found, expected=expected, hint=_AGAIN) from error
    return engine, _description_hash(data)


def _engine(folder: Path, read: _PlanFile) -> EngineFile:
    if read.format != _FORMAT:
        raise InputError("plan.format", found=read.format, expected=_FORMAT)
    if len(read.weights.sha256) != 64 or not set(read.weights.sha256) <= set("0123456789abcdef"):
        raise InputError("plan.weights.sha256", found=read.weights.sha256[:80], expected="64 hex digits")
    if read.weights.bytes < HEADER_BYTES:
        raise InputError("plan.weights.bytes", found=read.weights.bytes, expected=f"at least {HEADER_BYTES}")
    stored = (read.layers, read.embedding, read.final_norm, read.head, read.kv_scales)
    return EngineFile(folder / WEIGHTS_FILE, read.weights.bytes, read.weights.sha256, read.model, *stored)


def _read_json(path: Path) -> tuple[bytes, dict[str, Any]]:
    try:
        if (size := path.stat().st_size) > _MOST_PLAN_BYTES:
            raise ArtifactError(
                f"{path}: bytes", found=size, expected=f"at most {_MOST_PLAN_BYTES}", hint=_AGAIN
            )
        data = path.read_bytes()
        value = json.loads(data)
    except FileNotFoundError as error:
        raise ArtifactError(f"{path} is missing", hint=_AGAIN) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactError(f"can't read {path}", found=error, hint=_AGAIN) from error
    if not isinstance(value, dict):
        raise ArtifactError(f"{path}", found=type(value).__name__, expected="an object", hint=_AGAIN)
    return data, value


def _check_version(where: Path, found: Any) -> None:
    if type(found) is not int or found != LAYOUT_VERSION:
        raise ArtifactError(
            f"{where}: layout version", found=repr(found)[:40], expected=LAYOUT_VERSION, hint=_AGAIN
        )


def _description_hash(plan: bytes) -> bytes:
    """Of a plan file's bytes without the entry `weights`, which is the last of them."""
    described, _, _ = plan.rpartition(b',"weights":')
    return hashlib.sha256(described + b"}\n").digest()


def _check_weights_file(engine: EngineFile, digest: bytes) -> None:
    path = engine.path
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
    except FileNotFoundError as error:
        raise ArtifactError(f"{path} is missing", hint=_AGAIN) from error
    except OSError as error:
        raise ArtifactError(f"can't read {path}", found=error, hint=_AGAIN) from error
    _require(f"{path}: bytes", size, engine.bytes)
    magic, version, stated, described = _HEADER.unpack_from(header)
    _require(f"{path}: first bytes", magic, _MAGIC)
    _check_version(path, version)
    _require(f"{path}: size in the header", stated, engine.bytes)
    _require(f"{path}: sha256 of {PLAN_FILE} in the header", described.hex(), digest.hex())
    if any(header[_HEADER.size :]):
        raise IntegrityError(f"{path}: header", found="unknown fields", expected="zeros", hint=_AGAIN)


def _require(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise IntegrityError(what, found=found, expected=expected, hint=_AGAIN)
