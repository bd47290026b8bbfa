"""Reading a folder of safetensors files: headers are checked at once, tensors are mapped when asked for.

A safetensors file is an 8-byte little-endian header length, a JSON header and
one byte buffer that the header's tensors cover without holes or overlaps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from gristmill.runtime.errors import ModelError
from gristmill.runtime.sources.base import Tensor

__all__ = [
    "DTYPES",
    "INDEX_FILE",
    "MODEL_DTYPES",
    "SINGLE_FILE",
    "SafetensorsFolder",
    "TensorEntry",
    "read_header",
]

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        "F64": np.dtype(np.float64),
        "F32": np.dtype(np.float32),
        "F16": np.dtype(np.float16),
        "BF16": np.dtype(ml_dtypes.bfloat16),
        "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
        "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
        "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
        "I64": np.dtype(np.int64),
        "I32": np.dtype(np.int32),
        "I16": np.dtype(np.int16),
        "I8": np.dtype(np.int8),
        "U64": np.dtype(np.uint64),
        "U32": np.dtype(np.uint32),
        "U16": np.dtype(np.uint16),
        "U8": np.dtype(np.uint8),
        "BOOL": np.dtype(np.bool_),
    }
)

MODEL_DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {"bfloat16": DTYPES["BF16"], "float16": DTYPES["F16"], "float32": DTYPES["F32"]}
)
"""By the name that a `ModelPlan` has for its dtype."""
"""numpy's type for each type name of a safetensors header."""

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies: `offset` counts from the start of `file`."""

    file: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Size of the tensor's data."""
        return math.prod(self.shape) * self.dtype.itemsize


class SafetensorsFolder:
    """The tensors of `model.safetensors`, or of all shards named in `model.safetensors.index.json`.

    Every header is read and checked when the object is made; no tensor data is.
    Raises ModelError naming the file (and tensor) for a missing or truncated
    shard, a damaged header, offsets that overlap, and an index that is wrong.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._entries = _read_folder(folder)

    def names(self) -> tuple[str, ...]:
        """All tensor names, sorted."""
        return tuple(sorted(self._entries))

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def entry(self, name: str) -> TensorEntry:
        """Where `name` lies. Raises ModelError if there is no such tensor."""
        try:
            return self._entries[name]
        except KeyError:
            raise ModelError(
                f"tensor {name} is missing", found=f"{len(self._entries)} other tensors in {self.folder}"
            ) from None

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of `name`."""
        return self.entry(name).shape

    def dtype(self, name: str) -> np.dtype[Any]:
        """The element type of `name`; bfloat16 is `ml_dtypes.bfloat16`."""
        return self.entry(name).dtype

    def load(self, name: str) -> Tensor:
        """The data of `name`, read-only and mapped from the file until the array is dropped."""
        entry = self.entry(name)
        if entry.nbytes == 0:
            return np.empty(entry.shape, entry.dtype)
        try:
            mapped = np.memmap(entry.file, np.uint8, "r", entry.offset, (entry.nbytes,))
        except (OSError, ValueError) as error:
            raise ModelError(f"can't read tensor {name} from {entry.file}", found=error) from error
        raw = np.asarray(mapped)
        if entry.offset % entry.dtype.itemsize:
            raw = raw.copy()  # other writers need not align; arrays that we hand out are aligned
            raw.flags.writeable = False
        return raw.view(entry.dtype).reshape(entry.shape)


def read_header(file: Path) -> dict[str, TensorEntry]:
    """The tensors of one safetensors file. Raises ModelError if its layout is not as specified."""
    header, data_start, data_size = _header_json(file)
    entries: dict[str, TensorEntry] = {}
    spans: list[tuple[int, int, str]] = []
    for name, fields in header.items():
        if name == "__metadata__":
            continue
        entry, begin, end = _entry(file, name, fields, data_start)
        entries[name] = entry
        spans.append((begin, end, name))
    _check_spans(file, sorted(spans), data_size)
    return entries


def _header_json(file: Path) -> tuple[dict[str, Any], int, int]:
    """A file's parsed header, where its data starts, and how many bytes of data there are."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            prefix = stream.read(_LENGTH_BYTES)
            length = int.from_bytes(prefix, "little")
            limit = min(size - _LENGTH_BYTES, _MAX_HEADER_BYTES)
            if len(prefix) < _LENGTH_BYTES or length > limit:
                raise ModelError(
                    f"safetensors file {file} is truncated or damaged",
                    found=f"a header of {length} bytes in a file of {size} bytes",
                    hint="download it again",
                )
            text = stream.read(length)
    except OSError as error:
        raise ModelError(f"can't read {file}", found=error.strerror) from error
    try:
        header = json.loads(text, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"header of safetensors file {file} is damaged", found=error) from error
    if not isinstance(header, dict):
        raise ModelError(
            f"header of safetensors file {file}", found=type(header).__name__, expected="an object"
        )
    data_start = _LENGTH_BYTES + length
    return header, data_start, size - data_start


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} twice")
    return result


def _entry(file: Path, name: str, fields: Any, data_start: int) -> tuple[TensorEntry, int, int]:
    where = f"tensor {name} in {file}"
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise ModelError(where, found=fields, expected="dtype, shape and data_offsets")
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ModelError(f"type of {where}", found=dtype, expected="one of " + ", ".join(DTYPES))
    if not _are_sizes(shape):
        raise ModelError(f"shape of {where}", found=shape, expected="a list of sizes")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise ModelError(f"offsets of {where}", found=offsets, expected="[begin, end]")
    begin, end = offsets
    entry = TensorEntry(file, DTYPES[dtype], tuple(shape), data_start + begin)
    if end - begin != entry.nbytes:
        raise ModelError(
            f"offsets of {where}",
            found=f"{end - begin} bytes",
            expected=f"{entry.nbytes} for {dtype} {shape}",
        )
    return entry, begin, end


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _check_spans(file: Path, spans: list[tuple[int, int, str]], data_size: int) -> None:
    """The tensors, in order of their offsets, must cover the data exactly once."""
    position = 0
    for begin, end, name in spans:
        if begin != position:
            fault = "overlaps the one before it" if begin < position else "leaves a hole before it"
            raise ModelError(
                f"tensor {name} in {file} {fault}", found=f"offset {begin}", expected=f"offset {position}"
            )
        position = end
    if position != data_size:
        fault = "is truncated" if position > data_size else "has bytes that no tensor owns"
        raise ModelError(
            f"safetensors file {file} {fault}",
            found=f"{data_size} bytes of data",
            expected=f"{position} as its header says",
            hint="download it again",
        )


def _read_folder(folder: Path) -> dict[str, TensorEntry]:
    if not folder.is_dir():
        raise ModelError(f"model folder {folder} does not exist")
    if (folder / SINGLE_FILE).exists():
        return read_header(folder / SINGLE_FILE)
    if (folder / INDEX_FILE).exists():
        return dict(_read_shards(folder, _weight_map(folder / INDEX_FILE)))
    others = sorted(path.name for path in folder.glob("*.bin"))
    raise ModelError(
        f"no weights in {folder}",
        found=", ".join(others) or None,
        expected=f"{SINGLE_FILE} or {INDEX_FILE}",
        hint="convert the weights to safetensors first" if others else None,
    )


def _read_shards(folder: Path, weight_map: Mapping[str, str]) -> Iterator[tuple[str, TensorEntry]]:
    shards: dict[str, dict[str, TensorEntry]] = {}
    for file_name in sorted(set(weight_map.values())):
        if not (folder / file_name).exists():
            raise ModelError(
                f"shard {file_name} of {folder} is missing",
                expected=f"every file that {INDEX_FILE} names",
                hint="download it again",
            )
        shards[file_name] = read_header(folder / file_name)
    for name, file_name in weight_map.items():
        if name not in shards[file_name]:
            raise ModelError(
                f"tensor {name} is missing in {folder / file_name}", expected=f"as {INDEX_FILE} says"
            )
        yield name, shards[file_name][name]


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise ModelError(f"index {index} is damaged", found=repr(error), expected="a weight_map") from error
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"index {index}", found=weight_map, expected="a weight_map of tensors to files")
    for name, file_name in weight_map.items():
        # A name with a folder in it would let an index reach files outside the model.
        if not isinstance(file_name, str) or Path(file_name).name != file_name:
            raise ModelError(
                f"index {index}, tensor {name}",
                found=file_name,
                expected="the name of a file in the same folder",
            )
    return weight_map
