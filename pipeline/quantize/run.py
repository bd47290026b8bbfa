"""The quantize stage: walk the blocks, keep each finished one, continue at the last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch

from gristmill.artifacts.blobs import link_or_copy
from gristmill.artifacts.manifest import Determinism
from gristmill.calibration.blocks import load_block
from gristmill.calibration.samples import TokenSamples
from gristmill.calibration.walk import BlockWalk
from gristmill.pipeline.model import BuildModel
from gristmill.pipeline.progress import Progress
from gristmill.pipeline.quantize.block import (
    BlockResult,
    QuantizeSettings,
    quantize_block,
    served_weights,
)
from gristmill.pipeline.quantize.coverage import ExpertCoverage
from gristmill.pipeline.quantize.layer_file import LazyTensors, layer_path, read_layer, write_layer
from gristmill.pipeline.stages import StageCache, code_version, stage_key
from gristmill.runtime.errors import IntegrityError
from gristmill.runtime.executors.reference.blocks import to_numpy
from gristmill.runtime.model_plan import LayerPlan, ModelPlan
from gristmill.runtime.scheme import QuantScheme
from gristmill.runtime.sources.base import Tensor

__all__ = ["QUANTIZE_CODE", "QuantizedModel", "quantize_key", "quantize_model", "walk_compute"]

QUANTIZE_CODE = (
    "gristmill.calibration",
    "gristmill.pipeline.prepare",
    "gristmill.pipeline.quantize",
    "gristmill.runtime.architectures",
    "gristmill.runtime.executors.reference.activations",
    "gristmill.runtime.executors.reference.blocks",
    "gristmill.runtime.executors.reference.float_codes",
    "gristmill.runtime.executors.reference.linears",
    "gristmill.runtime.executors.reference.mlp",
    "gristmill.runtime.executors.reference.products",
    "gristmill.runtime.scheme",
    "gristmill.runtime.sources",
)
"""What computes a layer's result, for the keys of stages that quantize."""


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedModel:
    """All finished layers: codes read on demand, changed plain tensors, and what each linear lost.

    `folder` holds the layers' files, `schemes` is what they were quantized to.
    `coverage` is None for a model without experts, and where nothing was calibrated.
    """

    folder: Path
    schemes: Mapping[str, QuantScheme | None]
    tensors: LazyTensors
    dense: Mapping[str, Tensor]
    errors: Mapping[str, float]
    coverage: ExpertCoverage | None
    notes: tuple[str, ...]


def quantize_key(
    model_digest: str, samples: TokenSamples | None, settings: QuantizeSettings, contract: Determinism
) -> str:
    """The stage key: model, tokens, settings, and under what the arithmetic repeats to the bit."""
    inputs = {
        "model": model_digest,
        "samples": None if samples is None else samples.digest,
        "settings": asdict(settings),
        "contract": asdict(contract),
    }
    return stage_key("quantize", inputs, code_version(QUANTIZE_CODE))


def quantize_model(
    model: BuildModel,
    samples: TokenSamples | None,
    settings: QuantizeSettings,
    stages: StageCache,
    key: str,
    progress: Progress,
    earlier: QuantizedModel | None = None,
) -> QuantizedModel:
    """Quantize every block under the stage key `key`, beginning behind those that are finished.

    `earlier` differs in `schemes` alone: a layer depends on those before it, so
    the layers in front of the first that differs are taken from there. Raises
    ModelError, naming the linear, for NaN and Inf wherever they arise.
    """
    layers = model.plan.layers
    if (done := stages.finished("quantize", key)) is not None:
        return _collect(model, settings, done)
    with stages.open("quantize", key) as stage:
        progress.stage("quantize", len(layers), "layers")
        if earlier is not None:
            _take_layers(model.plan, settings, earlier, stage.folder)
        finished = _finished_layers(stage.folder, len(layers))
        if finished:
            progress.skip(finished)
            progress.note(f"continuing behind layer {finished} of {len(layers)}")
        for layer, result in _results(model, samples, settings, stage.folder, finished):
            write_layer(layer_path(stage.folder, layer.index), result)
            progress.advance()
        return _collect(model, settings, stage.finish())


def _results(
    model: BuildModel, samples: TokenSamples | None, settings: QuantizeSettings, folder: Path, finished: int
) -> Iterator[tuple[LayerPlan, BlockResult]]:
    """The results of the layers behind the first `finished`, which only carry the samples on."""
    if finished == len(model.plan.layers):
        return
    if samples is None:
        dtype: torch.dtype = getattr(torch, model.plan.dtype)
        for layer in model.plan.layers[finished:]:
            yield layer, quantize_block(layer, load_block(model.source, layer, dtype), None, settings)
        return
    walk = BlockWalk(
        model.plan,
        model.source,
        samples.sequences,
        compute=walk_compute(model.plan),
        sample_every=settings.sample_every,
        follow_original=settings.follow_original,
        schemes=settings.schemes,
        keep_rows=settings.keep_rows,
        min_expert_tokens=settings.min_expert_tokens,
    )
    for layer in model.plan.layers:
        weights = load_block(model.source, layer, walk.dtype)
        if layer.index < finished:
            walk.advance(layer, served_weights(weights, read_layer(layer_path(folder, layer.index))), weights)
            continue
        step = walk.enter(layer, weights)
        result = quantize_block(layer, weights, step, settings)
        yield layer, result
        if layer.index + 1 < len(model.plan.layers):
            step.leave(served_weights(weights, result))


def walk_compute(plan: ModelPlan) -> Literal["bfloat16", "float32"]:
    """The walk's number format: bfloat16 models as they are, all others without loss."""
    return "bfloat16" if plan.dtype == "bfloat16" else "float32"


def _finished_layers(folder: Path, total: int) -> int:
    """How many layers from the first on are whole; later ones without an earlier one do not count."""
    for index in range(total):
        path = layer_path(folder, index)
        if not path.exists():
            return index
        try:
            read_layer(path)
        except IntegrityError:
            path.unlink()
            return index
    return total


def _take_layers(plan: ModelPlan, settings: QuantizeSettings, earlier: QuantizedModel, folder: Path) -> None:
    """Link the layers that `earlier` and this stage have in common."""
    for layer in plan.layers:
        names = [linear.name for linear in layer.linears]
        if any(settings.schemes.get(name) != earlier.schemes.get(name) for name in names):
            return
        path = layer_path(folder, layer.index)
        if not path.exists():
            link_or_copy(layer_path(earlier.folder, layer.index), path)


def _collect(model: BuildModel, settings: QuantizeSettings, folder: Path) -> QuantizedModel:
    files: dict[str, Path] = {}
    dense: dict[str, Tensor] = {}
    dtype: torch.dtype = getattr(torch, model.plan.dtype)
    errors: dict[str, float] = {}
    routed: dict[str, int] = {}
    notes: list[str] = []
    for layer in model.plan.layers:
        path = layer_path(folder, layer.index)
        result = read_layer(path)
        files |= dict.fromkeys(result.quantized, path)
        dense |= {name: to_numpy(tensor.to(dtype)) for name, tensor in result.dense.items()}
        errors |= result.errors
        routed |= result.routed
        notes += result.notes
    coverage = ExpertCoverage(settings.min_expert_tokens, routed) if routed else None
    return QuantizedModel(folder, settings.schemes, LazyTensors(files), dense, errors, coverage, tuple(notes))
