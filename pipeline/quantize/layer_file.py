"""A finished layer on disk: what lets a killed build continue at the next one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from gristmill.pipeline.quantize.block import BlockResult
from gristmill.runtime.errors import IntegrityError
from gristmill.runtime.files import write_atomic
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme

__all__ = ["LazyTensors", "layer_path", "read_layer", "write_layer"]

_CODES, _SCALES, _ZEROS, _DENSE = "codes:", "scales:", "zeros:", "dense:"


def layer_path(folder: Path, index: int) -> Path:
    """Where layer `index` of a build lies."""
    return folder / f"layer-{index:05d}.safetensors"


def write_layer(path: Path, result: BlockResult) -> None:
    """Write a layer whole or not at all. Raises StorageError."""
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in result.quantized.items():
        tensors[_CODES + name] = torch.from_numpy(tensor.codes)
        tensors[_SCALES + name] = torch.from_numpy(tensor.scales)
        if tensor.zero_points is not None:
            tensors[_ZEROS + name] = torch.from_numpy(tensor.zero_points)
    tensors |= {_DENSE + name: tensor for name, tensor in result.dense.items()}
    rest = {
        "schemes": {name: tensor.scheme.to_dict() for name, tensor in result.quantized.items()},
        "errors": result.errors,
        "notes": list(result.notes),
    }
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    write_atomic(path, save(contiguous, {"layer": json.dumps(rest, sort_keys=True)}))


def read_layer(path: Path) -> BlockResult:
    """Inverse of `write_layer`. Raises IntegrityError if the file is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            rest = json.loads(file.metadata()["layer"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise IntegrityError(f"{path} is not a finished layer", found=error, hint="remove it") from error
    quantized = {
        name: QuantizedTensor(
            QuantScheme.from_dict(scheme),
            tensors[_CODES + name].numpy(),
            tensors[_SCALES + name].numpy(),
            tensors[_ZEROS + name].numpy() if _ZEROS + name in tensors else None,
        )
        for name, scheme in rest["schemes"].items()
    }
    dense = {name.removeprefix(_DENSE): t for name, t in tensors.items() if name.startswith(_DENSE)}
    return BlockResult(quantized, dense, rest["errors"], tuple(rest["notes"]))


@dataclass(frozen=True, slots=True)
class LazyTensors(Mapping[str, QuantizedTensor]):
    """The quantized linears of all layers by name, each read from its file when it is asked for."""

    files: Mapping[str, Path]

    def __getitem__(self, name: str) -> QuantizedTensor:
        return read_layer(self.files[name]).quantized[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)
