"""The GGUF container: metadata and the table of tensors, of one file or of all parts of a split one.

Layout (versions 2 and 3, little-endian): magic, version, two counts; the
metadata as key, type, value; one record a tensor; padding; tensor data.
The package gguf takes 2.4 s for the header of a model with 49k tokens, and it
trusts the lengths it reads; here it is 0.05 s and each length is checked
against the file. Types, block sizes and dequantization are the package's.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFValueType

from gristmill.runtime.errors import ModelError

__all__ = ["MAGIC", "GgufContainer", "GgufTensor", "read_gguf"]

MAGIC = b"GGUF"

_OLD_MAGICS = (b"ggml", b"ggmf", b"ggjt", b"ggla")
_VERSIONS = (2, 3)
_SCALARS = {
    GGUFValueType.UINT8: "<B",
    GGUFValueType.INT8: "<b",
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.BOOL: "<?",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.INT64: "<q",
    GGUFValueType.FLOAT64: "<d",
}
_LENGTH = struct.Struct("<Q")
_MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where one tensor lies. `shape` is in numpy's order: rows first, the quantized axis last."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufContainer:
    """What a GGUF file says about itself: metadata by key, tensors by GGUF name."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def read_gguf(parts: Sequence[Path]) -> GgufContainer:
    """Read the header of a GGUF file, or of all parts of a split one in their order.

    Raises ModelError for anything that is not a whole GGUF of version 2 or 3:
    another magic or byte order, a header or data cut short, parts that do not
    belong together.
    """
    containers = [_read_part(path) for path in parts]
    first = containers[0]
    count = first.metadata.get("split.count") or 1
    if count != len(parts):
        raise ModelError(
            f"{parts[0]} is one of {count} parts",
            found=f"{len(parts)} of them",
            expected=f"files named {_stem(parts[0])}-00001-of-{count:05d}.gguf and so on in one folder",
        )
    if len(parts) == 1:
        return first
    tensors: dict[str, GgufTensor] = {}
    for number, (path, part) in enumerate(zip(parts, containers, strict=True)):
        _check_part(path, number, count, part)
        repeated = sorted(tensors.keys() & part.tensors.keys())
        if repeated:
            raise ModelError(f"{path} repeats tensor {repeated[0]} of an earlier part")
        tensors.update(part.tensors)
    total = first.metadata.get("split.tensors.count", len(tensors))
    if total != len(tensors):
        raise ModelError(f"parts of {parts[0]}", found=f"{len(tensors)} tensors", expected=total)
    return GgufContainer(first.metadata, tensors)


def _stem(path: Path) -> str:
    return path.stem.rsplit("-of-", 1)[0].rsplit("-", 1)[0]


def _check_part(path: Path, number: int, count: int, part: GgufContainer) -> None:
    found = (part.metadata.get("split.no"), part.metadata.get("split.count"))
    if found != (number, count):
        raise ModelError(
            f"{path} is not part {number + 1} of {count}",
            found=f"split.no {found[0]}, split.count {found[1]}",
            expected=f"split.no {number}, split.count {count}",
        )


def _read_part(path: Path) -> GgufContainer:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < len(MAGIC):
                raise ModelError(
                    f"{path} is not a GGUF file", found=f"{size} bytes", hint="download it again"
                )
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                return _parse(_Cursor(view, path, size))
    except OSError as error:
        raise ModelError(f"can't read {path}", found=error.strerror) from error


class _Cursor:
    """A position in a header; every read is checked against the file's size."""

    def __init__(self, view: mmap.mmap, path: Path, size: int) -> None:
        self.view = view
        self.path = path
        self.size = size
        self.position = 0

    def skip(self, nbytes: int, what: str) -> int:
        """Move on by `nbytes` and return where they start."""
        start = self.position
        if nbytes > self.size - start:
            raise ModelError(
                f"GGUF file {self.path} is cut short in {what}",
                found=f"{self.size} bytes",
                expected=f"at least {start + nbytes}",
                hint="download it again",
            )
        self.position = start + nbytes
        return start

    def scalar(self, layout: str, what: str) -> Any:
        start = self.skip(struct.calcsize(layout), what)
        return struct.unpack_from(layout, self.view, start)[0]

    def string(self, what: str) -> str:
        length = self.scalar("<Q", what)
        start = self.skip(length, what)
        try:
            return self.view[start : self.position].decode()
        except UnicodeDecodeError as error:
            raise ModelError(f"{what} of {self.path} is not UTF-8", found=error.reason) from error

    def strings(self, count: int, what: str) -> list[str]:
        """An array of strings; the one hot loop of a header, hence not by `string`."""
        view, size, position = self.view, self.size, self.position
        unpack = _LENGTH.unpack_from
        values = []
        try:
            for _ in range(count):
                start = position + _LENGTH.size
                position = start + unpack(view, position)[0]
                if position > size:
                    break
                values.append(view[start:position].decode())
        except UnicodeDecodeError as error:
            raise ModelError(f"{what} of {self.path} is not UTF-8", found=error.reason) from error
        except struct.error:
            position = size + 1
        self.position = min(position, size)
        self.skip(max(0, position - size), what)
        return values

    def value(self, kind: int, what: str) -> Any:
        """One metadata value; arrays become lists."""
        try:
            value_type = GGUFValueType(kind)
        except ValueError:
            raise ModelError(f"type of {what} in {self.path}", found=kind, expected="a GGUF type") from None
        if value_type is GGUFValueType.STRING:
            return self.string(what)
        if value_type is GGUFValueType.ARRAY:
            return self._array(what)
        return self.scalar(_SCALARS[value_type], what)

    def _array(self, what: str) -> list[Any]:
        kind, count = self.scalar("<I", what), self.scalar("<Q", what)
        if kind == GGUFValueType.STRING:
            return self.strings(count, what)
        if kind == GGUFValueType.ARRAY or kind not in _SCALARS:
            raise ModelError(f"elements of {what} in {self.path}", found=f"type {kind}", expected="scalars")
        dtype = np.dtype(_SCALARS[GGUFValueType(kind)])
        start = self.skip(count * dtype.itemsize, what)
        # A copy, because an array over the mapping would keep it from being closed.
        return list(np.frombuffer(self.view[start : self.position], dtype).tolist())


def _parse(cursor: _Cursor) -> GgufContainer:
    _check_version(cursor)
    tensor_count, key_count = cursor.scalar("<Q", "the header"), cursor.scalar("<Q", "the header")
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = cursor.string("the metadata")
        if key in metadata:
            raise ModelError(f"metadata key {key} stands twice in {cursor.path}")
        metadata[key] = cursor.value(cursor.scalar("<I", f"metadata {key}"), f"metadata {key}")
    records = [_tensor_record(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise ModelError(f"general.alignment of {cursor.path}", found=alignment, expected="a power of two")
    data_start = -(-cursor.position // alignment) * alignment
    tensors = {}
    for name, kind, shape, offset in records:
        if name in tensors:
            raise ModelError(f"tensor {name} stands twice in {cursor.path}")
        tensors[name] = _tensor(cursor, name, kind, shape, data_start + offset)
    return GgufContainer(metadata, tensors)


def _check_version(cursor: _Cursor) -> None:
    magic = bytes(cursor.view[: len(MAGIC)])
    if magic != MAGIC:
        hint = "a model file from before GGUF must be converted again" if magic[::-1] in _OLD_MAGICS else None
        raise ModelError(f"{cursor.path} is not a GGUF file", found=magic, expected=MAGIC, hint=hint)
    cursor.position = len(MAGIC)
    version = cursor.scalar("<I", "the header")
    if version & 0xFFFF == 0:
        raise ModelError(f"{cursor.path} is big-endian", expected="a little-endian GGUF")
    if version not in _VERSIONS:
        hint = "convert the model again with a current llama.cpp" if version < _VERSIONS[0] else None
        raise ModelError(f"GGUF version of {cursor.path}", found=version, expected="2 or 3", hint=hint)


def _tensor_record(cursor: _Cursor) -> tuple[str, int, tuple[int, ...], int]:
    name = cursor.string("the tensor table")
    what = f"the record of tensor {name}"
    dimensions = cursor.scalar("<I", what)
    if dimensions > _MAX_DIMENSIONS:
        raise ModelError(f"{what} in {cursor.path}", found=f"{dimensions} dimensions", expected="at most 4")
    shape = tuple(cursor.scalar("<Q", what) for _ in range(dimensions))
    return name, cursor.scalar("<I", what), shape[::-1], cursor.scalar("<Q", what)


def _tensor(cursor: _Cursor, name: str, kind: int, shape: tuple[int, ...], offset: int) -> GgufTensor:
    try:
        tensor_type = GGMLQuantizationType(kind)
    except ValueError:
        raise ModelError(
            f"type of tensor {name} in {cursor.path}", found=kind, expected="a GGML type"
        ) from None
    block, block_bytes = GGML_QUANT_SIZES[tensor_type]
    if (shape[-1] if shape else 1) % block:
        raise ModelError(
            f"row of tensor {name} in {cursor.path}",
            found=f"{shape[-1]} values",
            expected=f"a multiple of {block} for {tensor_type.name}",
        )
    nbytes = math.prod(shape) // block * block_bytes
    if offset + nbytes > cursor.size:
        raise ModelError(
            f"GGUF file {cursor.path} is cut short in tensor {name}",
            found=f"{cursor.size} bytes",
            expected=f"at least {offset + nbytes}",
            hint="download it again",
        )
    return GgufTensor(name, tensor_type, shape, cursor.path, offset, nbytes)
