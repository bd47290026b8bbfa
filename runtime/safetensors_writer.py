"""Writing one safetensors file without holding its tensors: sizes first, then data in any order."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gristmill.runtime.errors import InternalError
from gristmill.runtime.files import writing_whole
from gristmill.runtime.safetensors_files import DTYPES
from gristmill.runtime.sources.base import Tensor

__all__ = ["TensorSpec", "write_safetensors"]

_ALIGNMENT = 8
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Type and shape of a tensor that is not at hand."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSpec:
        """The spec of a tensor at hand."""
        return cls(tensor.dtype, tensor.shape)

    @property
    def nbytes(self) -> int:
        """Size of the tensor's data."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


def write_safetensors(
    path: Path, specs: Mapping[str, TensorSpec], tensors: Iterable[tuple[str, Tensor]]
) -> None:
    """Write `tensors`, one at a time, as the file `path`, which appears whole and synced or not at all.

    The bytes depend on `specs` (and its order) and on the data, not on the
    order of `tensors`. Each tensor is aligned to its element size. Raises
    StorageError, and InternalError if `tensors` is not exactly what `specs` says.
    """
    header, offsets = _layout(specs)
    with writing_whole(path) as file:
        file.write(header)
        _write_data(file, specs, offsets, tensors)


def _layout(specs: Mapping[str, TensorSpec]) -> tuple[bytes, dict[str, int]]:
    """The header with its length, and where each tensor's data starts in the file."""
    # Wide elements first: then every tensor is aligned and the data has no holes, which the format forbids.
    names = sorted(specs, key=lambda name: -specs[name].dtype.itemsize)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begins: dict[str, int] = {}
    position = 0
    for name in names:
        spec = specs[name]
        begins[name] = position
        position += spec.nbytes
        header[name] = {
            "dtype": _DTYPE_NAMES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [begins[name], position],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    prefix = len(text).to_bytes(8, "little") + text
    return prefix, {name: len(prefix) + begin for name, begin in begins.items()}


def _write_data(
    file: BinaryIO,
    specs: Mapping[str, TensorSpec],
    offsets: Mapping[str, int],
    tensors: Iterable[tuple[str, Tensor]],
) -> None:
    missing = set(specs)
    for name, tensor in tensors:
        found = TensorSpec.of(tensor)
        if name not in missing or found != specs[name]:
            expected = specs[name] if name in missing else "each tensor of the header once"
            raise InternalError(f"tensor {name} while writing", found=found, expected=expected)
        missing.remove(name)
        file.seek(offsets[name])
        file.write(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
    if missing:
        raise InternalError(f"tensor {min(missing)} was never written")
