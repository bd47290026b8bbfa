"""Writing a quantized model as a standard Hugging Face folder, one tensor in memory at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.runtime.architectures import plan_model
from gristmill.runtime.errors import ArtifactError, InternalError, ModelError, UnsupportedError
from gristmill.runtime.files import storage_errors, write_atomic
from gristmill.runtime.formats.base import WeightFormat, stored_scales
from gristmill.runtime.formats.kv_scales import kv_cache_scheme, kv_scale_tensors
from gristmill.runtime.formats.select import FORMATS, FormatName
from gristmill.runtime.kv_scales import KVScales, scale_share
from gristmill.runtime.model_plan import ModelPlan
from gristmill.runtime.safetensors_files import INDEX_FILE, MODEL_DTYPES, SINGLE_FILE
from gristmill.runtime.safetensors_writer import TensorSpec, write_safetensors
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme
from gristmill.runtime.sources.base import ModelSource, Tensor

__all__ = ["DEFAULT_SHARD_BYTES", "write_checkpoint"]

DEFAULT_SHARD_BYTES = 4 << 30
_Description = tuple[QuantScheme | None, dict[str, TensorSpec]]
_HEAD = "lm_head"  # the module that other engines build even where the weights are tied


def write_checkpoint(
    folder: Path,
    source: ModelSource,
    quantized: Mapping[str, QuantizedTensor],
    dense: Mapping[str, Tensor],
    format: FormatName,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    *,
    kv_scales: KVScales = (),
) -> None:
    """Write `source` with the linears of `quantized` packed and the tensors of `dense` replaced.

    `quantized` is keyed by linear name, `dense` by tensor name; every other
    tensor and side file is copied as it is. A tied head is not written. Each
    tensor is asked for twice, first for its shape and then for its data, so
    `quantized` may load lazily; one is held at a time. `kv_scales` are those of
    an FP8 cache, if it has any. Equal input gives equal bytes. `config.json`
    comes last: a folder without it is unfinished. Raises ArtifactError if
    `folder` is not empty, and UnsupportedError for what the format can't hold.
    """
    if "quantization_config" in source.config:
        raise UnsupportedError(f"model {source.name} is quantized already", hint="start from its original")
    plan = plan_model(source.config)
    names = _tensor_names(plan, source)
    linears, replaced = frozenset(quantized), frozenset(dense)
    _check_names(plan, names, linears, replaced)
    weight_format, dtype = FORMATS[format], MODEL_DTYPES[plan.dtype]
    added = _kv_scale_tensors(plan, kv_scales, format, dtype)
    content = _Content(source, quantized, dense, linears, replaced, added, weight_format, dtype)
    contents = {name: content.describe(name) for name in (*names, *added)}
    config = _config(source.config, plan, weight_format, contents, kv_scales)
    _make_empty(folder)
    _write_weights(folder, content, {name: specs for name, (_, specs) in contents.items()}, shard_bytes)
    for name, data in source.side_files().items():
        write_atomic(folder / name, data)
    write_atomic(folder / "config.json", _readable_json(config))


@dataclass(frozen=True, slots=True)
class _Content:
    """What stands in the new checkpoint for each tensor of the source."""

    source: ModelSource
    quantized: Mapping[str, QuantizedTensor]
    dense: Mapping[str, Tensor]
    linears: frozenset[str]  # the names of `quantized` and, below, of `dense`: a lazy mapping may
    replaced: frozenset[str]  # load a tensor to answer whether it has it
    added: Mapping[str, Tensor]
    format: WeightFormat
    model_dtype: np.dtype[Any]

    def describe(self, name: str) -> _Description:
        """The scheme of the source's tensor `name` (None: not quantized), and the tensors written for it."""
        linear = name.removesuffix(".weight")
        if linear not in self.linears:
            return None, {name: TensorSpec.of(self._plain(name))}
        tensor = self.quantized[linear]
        return tensor.scheme, self.format.layout(linear, tensor.scheme, tensor.shape)

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors of `describe`, with their data."""
        linear = name.removesuffix(".weight")
        if linear not in self.linears:
            return {name: self._plain(name)}
        tensor = self.quantized[linear]
        if self.format.SCALES_IN_MODEL_DTYPE and not tensor.scheme.is_float4:
            stored_scales(linear, tensor.scales, self.model_dtype)
        return self.format.encode(linear, tensor)

    def _plain(self, name: str) -> Tensor:
        if name in self.added:
            return self.added[name]
        return self.dense[name] if name in self.replaced else self.source.load(name)


def _config(
    source: Mapping[str, Any],
    plan: ModelPlan,
    weight_format: WeightFormat,
    contents: Mapping[str, _Description],
    kv_scales: KVScales,
) -> dict[str, Any]:
    """The source's `config.json` with the quantization block, if anything is quantized."""
    names = [linear.name for linear in plan.linears]
    names += [router.name for layer in plan.layers for router in layer.mlp.routers]
    names.append(_HEAD if plan.head is None else plan.head.name)
    found = {name: contents.get(f"{name}.weight", (None, {}))[0] for name in names}
    schemes = {name: scheme for name, scheme in found.items() if scheme is not None}
    if not schemes and not kv_scales:
        return dict(source)
    skipped = [name for name in names if name not in schemes]
    block = weight_format.quantization_config(schemes, skipped)
    if kv_scales:
        block["kv_cache_scheme"] = kv_cache_scheme(scale_share(kv_scales))
    return {**source, "quantization_config": block}


def _kv_scale_tensors(
    plan: ModelPlan, kv_scales: KVScales, format: FormatName, dtype: np.dtype[Any]
) -> dict[str, Tensor]:
    if not kv_scales:
        return {}
    if format != "compressed-tensors":
        raise UnsupportedError(
            "scales of an fp8 cache", found=f"format {format}", expected="compressed-tensors, which has them"
        )
    return kv_scale_tensors(plan, kv_scales, dtype)


def _tensor_names(plan: ModelPlan, source: ModelSource) -> list[str]:
    """The source's tensors: those of the plan in its order, then the rest; without a tied head."""
    stored = source.tensor_shapes()
    planned = list(plan.tensor_shapes())
    if missing := [name for name in planned if name not in stored]:
        raise ModelError(f"tensor {missing[0]} is missing in {source.name}", found=f"{len(missing)} missing")
    rest = sorted(set(stored) - set(planned))
    return planned + [name for name in rest if plan.head is not None or name != f"{_HEAD}.weight"]


def _check_names(
    plan: ModelPlan, names: Sequence[str], quantized: frozenset[str], dense: frozenset[str]
) -> None:
    linears = {linear.name for linear in plan.linears} | ({plan.head.name} if plan.head else set())
    if unknown := sorted(quantized - linears):
        raise InternalError(f"quantized tensor {unknown[0]} is no linear of the model")
    if unknown := sorted(dense - set(names)):
        raise InternalError(f"replaced tensor {unknown[0]} is no tensor of the model")
    if both := sorted(dense & {f"{name}.weight" for name in quantized}):
        raise InternalError(f"tensor {both[0]} is both quantized and replaced")


def _make_empty(folder: Path) -> None:
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if next(folder.iterdir(), None) is not None:
            raise ArtifactError(f"folder {folder} is not empty", expected="a new folder for the checkpoint")


def _write_weights(
    folder: Path, content: _Content, specs: Mapping[str, Mapping[str, TensorSpec]], shard_bytes: int
) -> None:
    shards = _shards(specs, shard_bytes)
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = SINGLE_FILE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        shard_specs = {piece: spec for name in shard for piece, spec in specs[name].items()}
        write_safetensors(folder / file, shard_specs, _stream(content, shard))
        weight_map.update(dict.fromkeys(shard_specs, file))
    if len(shards) > 1:
        total = sum(spec.nbytes for pieces in specs.values() for spec in pieces.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        write_atomic(folder / INDEX_FILE, _readable_json(index))


def _stream(content: _Content, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    for name in names:
        yield from content.tensors(name).items()


def _shards(specs: Mapping[str, Mapping[str, TensorSpec]], shard_bytes: int) -> list[list[str]]:
    """Neighbours share a shard up to `shard_bytes`; the pieces of one weight are never parted."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, pieces in specs.items():
        size = sum(spec.nbytes for spec in pieces.values())
        if shards[-1] and filled + size > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def _readable_json(value: Any) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"
