"""The kv_scales stage: an FP8 cache's scales, from what the quantized model's keys and values come to."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from pydantic import TypeAdapter

from gristmill.calibration.blocks import load_block
from gristmill.calibration.kv_peaks import KVPeaks, kv_peaks
from gristmill.calibration.samples import TokenSamples
from gristmill.pipeline.model import BuildModel
from gristmill.pipeline.progress import Progress
from gristmill.pipeline.quantize.block import BlockResult, Weights, served_weights
from gristmill.pipeline.quantize.run import QuantizedModel, walk_compute
from gristmill.pipeline.stages import StageCache, code_version, stage_key
from gristmill.runtime.executors.reference.blocks import to_torch
from gristmill.runtime.files import write_atomic
from gristmill.runtime.kv_scales import KVScales, LayerKVScales, ScaleShare
from gristmill.runtime.model_plan import LayerPlan
from gristmill.runtime.safetensors_files import MODEL_DTYPES
from gristmill.runtime.scheme import FLOAT8_MAX

__all__ = ["calibrate_kv", "kv_scales_of"]

_FILE = "kv_scales.json"
_SCALES = TypeAdapter(tuple[LayerKVScales, ...])
_CODE = (
    "gristmill.calibration",
    "gristmill.pipeline.kv_calibration",
    "gristmill.pipeline.quantize.block",
    "gristmill.runtime.executors.reference",
    "gristmill.runtime.kv_scales",
    "gristmill.runtime.safetensors_files",
    "gristmill.runtime.scheme",
)


def calibrate_kv(
    model: BuildModel,
    quantized: QuantizedModel,
    samples: TokenSamples,
    share: ScaleShare,
    *,
    quantize_key: str,
    stages: StageCache,
    progress: Progress,
) -> KVScales:
    """The scales of every layer, measured now or by an earlier build of the same quantized model."""
    inputs = {"quantize": quantize_key, "samples": samples.digest, "share": share}
    key = stage_key("kv_scales", inputs, code_version(_CODE))
    if (done := stages.finished("kv_scales", key)) is not None:
        return _SCALES.validate_json((done / _FILE).read_bytes())
    with stages.open("kv_scales", key) as stage:
        progress.stage("kv_scales", len(model.plan.layers), "layers")
        peaks: list[KVPeaks] = []
        for found in kv_peaks(
            model.plan,
            model.source,
            samples.sequences,
            partial(_served, model, quantized),
            compute=walk_compute(model.plan),
            schemes=model.schemes,
        ):
            peaks.append(found)
            progress.advance()
        scales = kv_scales_of(peaks, share, model.plan.dtype)
        write_atomic(stage.folder / _FILE, _SCALES.dump_json(scales))
        stage.finish()
    return scales


def kv_scales_of(peaks: Sequence[KVPeaks], share: ScaleShare, dtype: str) -> KVScales:
    """The least scales in `dtype`, in which checkpoints store them, at which no peak is cut: peak / 448."""
    return tuple(
        LayerKVScales(_scales(layer.keys, share, dtype), _scales(layer.values, share, dtype))
        for layer in peaks
    )


def _scales(peaks: Sequence[float], share: ScaleShare, dtype: str) -> tuple[float, ...]:
    shared = [max(peaks)] if share == "tensor" else peaks
    return tuple(_rounded_up(peak / FLOAT8_MAX, dtype) if peak > 0 else 1.0 for peak in shared)


def _rounded_up(scale: float, dtype: str) -> float:
    kind = MODEL_DTYPES[dtype]
    stored = np.asarray(scale, kind)
    return float(stored if float(stored) >= scale else np.nextafter(stored, np.asarray(np.inf, kind)))


def _served(model: BuildModel, quantized: QuantizedModel, layer: LayerPlan, dtype: torch.dtype) -> Weights:
    weights = load_block(model.source, layer, dtype)
    known = quantized.tensors
    tensors = {linear.name: known[linear.name] for linear in layer.linears if linear.name in known}
    dense = {name: to_torch(quantized.dense[name]).to(dtype) for name in weights if name in quantized.dense}
    return served_weights(weights, BlockResult(tensors, dense, {}))
