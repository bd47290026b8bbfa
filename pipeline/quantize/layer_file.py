"""A finished layer on disk: what lets a killed build continue at the next one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from gristmill.pipeline.quantize.block import BlockResult
from gristmill.runtime.errors import IntegrityError
from gristmill.runtime.files import write_atomic
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme

__all__ = ["LazyTensors", "layer_path", "read_layer", "read_linear", "write_layer"]

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
        "input_scales": {name: tensor.input_scale for name, tensor in result.quantized.items()},
        "global_scales": {name: tensor.global_scale for name, tensor in result.quantized.items()},
        "errors": result.errors,
        "routed": result.routed,
        "notes": list(result.notes),
    }
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    write_atomic(path, save(contiguous, {"layer": json.dumps(rest, sort_keys=True)}))


def read_layer(path: Path) -> BlockResult:
    """Inverse of `write_layer`. Raises IntegrityError if the file is damaged."""
    with _opened(path) as (file, rest):
        quantized = {name: _tensor(file, name, rest) for name in rest["schemes"]}
        names = [key.removeprefix(_DENSE) for key in file.keys() if key.startswith(_DENSE)]  # noqa: SIM118
        dense = {name: file.get_tensor(_DENSE + name) for name in names}
        return BlockResult(quantized, dense, rest["errors"], rest["routed"], tuple(rest["notes"]))


def read_linear(path: Path, name: str) -> QuantizedTensor:
    """One linear of a layer, without reading the others. Raises IntegrityError."""
    with _opened(path) as (file, rest):
        return _tensor(file, name, rest)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file, json.loads(file.metadata()["layer"])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise IntegrityError(f"{path} is not a finished layer", found=error, hint="remove it") from error


def _tensor(file: Any, name: str, rest: Mapping[str, Any]) -> QuantizedTensor:
    scheme = QuantScheme.from_dict(rest["schemes"][name])
    zeros = None if scheme.symmetric else file.get_tensor(_ZEROS + name).numpy()
    codes, scales = file.get_tensor(_CODES + name), file.get_tensor(_SCALES + name)
    return QuantizedTensor(
        scheme,
        codes.numpy(),
        scales.numpy(),
        zeros,
        input_scale=rest["input_scales"][name],
        global_scale=rest["global_scales"][name],
    )


@dataclass(frozen=True, slots=True)
class LazyTensors(Mapping[str, QuantizedTensor]):
    """The quantized linears of all layers by name, each read from its file when it is asked for."""

    files: Mapping[str, Path]

    def __getitem__(self, name: str) -> QuantizedTensor:
        return read_linear(self.files[name], name)

    def __contains__(self, name: object) -> bool:
        """Without reading it, as the inherited one would."""
        return name in self.files

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)
