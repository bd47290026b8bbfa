"""Reading a checkpoint folder, packed or plain, by the layers of its model plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from gristmill.runtime.architectures import plan_model
from gristmill.runtime.errors import ModelError
from gristmill.runtime.formats.base import WeightFormat
from gristmill.runtime.formats.kv_scales import parse_kv_cache_scheme, read_kv_scales
from gristmill.runtime.formats.select import format_of
from gristmill.runtime.kv_scales import KVScales
from gristmill.runtime.model_plan import LinearPlan, ModelPlan
from gristmill.runtime.safetensors_files import DTYPES, SafetensorsFolder
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme
from gristmill.runtime.sources.base import Tensor

__all__ = ["Checkpoint", "open_checkpoint"]

_FLOATS = (DTYPES["BF16"], DTYPES["F16"], DTYPES["F32"])
_SIDE_CONFIGS = ("quant_config.json", "quantize_config.json", "hf_quant_config.json")


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A folder whose every tensor was checked against the plan when it was opened; data is read on demand.

    `schemes` holds the packed linears; all others are plain floating point.
    `kv_scales` are those of an FP8 cache, empty where the checkpoint has none.
    """

    folder: Path
    config: Mapping[str, Any]
    plan: ModelPlan
    schemes: Mapping[str, QuantScheme]
    kv_scales: KVScales
    _format: WeightFormat | None
    _files: SafetensorsFolder

    def tensor(self, name: str) -> Tensor:
        """One stored tensor by its name. Raises ModelError if there is none."""
        return self._files.load(name)

    def weight(self, linear: LinearPlan) -> QuantizedTensor | Tensor:
        """The weight [N, K] of a linear: quantized if it is in `schemes`, else as stored."""
        scheme = self.schemes.get(linear.name)
        if scheme is None or self._format is None:
            return self.tensor(linear.weight)
        tensor = self._format.decode(linear.name, self.tensor, scheme)
        expected = (linear.out_features, linear.in_features)
        if tensor.shape != expected:
            raise ModelError(
                f"packed weight {linear.name} in {self.folder}", found=tensor.shape, expected=expected
            )
        return tensor


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open a Hugging Face folder: plain, compressed-tensors `pack-quantized`, or AWQ.

    Raises UnsupportedError naming the quantization method or architecture
    that is not read, and ModelError naming the file and tensor for anything
    missing, damaged or of another shape than the configuration says.
    """
    if not folder.is_dir():
        raise ModelError(f"model folder {folder} does not exist")
    config = _read_json(folder / "config.json")
    plan = plan_model(config)
    quantization = _quantization(folder, config)
    weight_format = None if quantization is None else format_of(quantization)
    files = SafetensorsFolder(folder)
    schemes: dict[str, QuantScheme] = {}
    if quantization is not None and weight_format is not None:
        parsed = weight_format.parse_config(quantization, [linear.name for linear in _all_linears(plan)])
        schemes = {
            name: weight_format.stored_scheme(name, scheme, files.dtype) for name, scheme in parsed.items()
        }
    _check_tensors(files, plan, weight_format, schemes)
    share = None if quantization is None else parse_kv_cache_scheme(quantization.get("kv_cache_scheme"))
    kv_scales = read_kv_scales(plan, share, files.names(), files.load)
    return Checkpoint(folder, config, plan, MappingProxyType(schemes), kv_scales, weight_format, files)


def _all_linears(plan: ModelPlan) -> tuple[LinearPlan, ...]:
    return plan.linears if plan.head is None else (*plan.linears, plan.head)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise ModelError(f"{file.name} is missing in {file.parent}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"can't read {file}", found=error) from error
    if not isinstance(value, dict):
        raise ModelError(f"{file}", found=type(value).__name__, expected="an object")
    return value


def _quantization(folder: Path, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The quantization block: in `config.json`, or in the file of its own that some writers make instead."""
    block = config.get("quantization_config")
    if isinstance(block, dict):
        return block
    if block is not None:
        raise ModelError(
            f"quantization_config in {folder / 'config.json'}", found=block, expected="an object"
        )
    for name in _SIDE_CONFIGS:
        if (folder / name).exists():
            return _read_json(folder / name)
    return None


def _check_tensors(
    files: SafetensorsFolder,
    plan: ModelPlan,
    weight_format: WeightFormat | None,
    schemes: Mapping[str, QuantScheme],
) -> None:
    for name, shape in plan.tensor_shapes().items():
        linear = name.removesuffix(".weight")
        if weight_format is None or linear not in schemes:
            _check(files, name, shape, _FLOATS)
            continue
        rows, columns = shape
        for piece, spec in weight_format.layout(linear, schemes[linear], (rows, columns)).items():
            _check(files, piece, spec.shape, (spec.dtype,))


def _check(
    files: SafetensorsFolder, name: str, shape: tuple[int, ...], dtypes: tuple[np.dtype[Any], ...]
) -> None:
    entry = files.entry(name)
    if entry.shape != shape or entry.dtype not in dtypes:
        raise ModelError(
            f"tensor {name} in {entry.file}",
            found=f"{entry.dtype} {list(entry.shape)}",
            expected=f"{' or '.join(map(str, dtypes))} {list(shape)}",
        )
