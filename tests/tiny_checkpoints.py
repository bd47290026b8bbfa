"""Small checkpoints with random weights, and the plainest quantizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.architectures import plan_model
from gristmill.runtime.formats.write import write_checkpoint
from gristmill.runtime.model_plan import LayerPlan, MlpPlan
from gristmill.runtime.safetensors_writer import TensorSpec, write_safetensors
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme
from gristmill.runtime.sources.hf_folder import HfFolder

__all__ = [
    "DTYPES",
    "SchemeOf",
    "dense_mlp",
    "quantize_source",
    "random_quantized",
    "round_to_nearest",
    "write_folder",
    "write_random",
    "write_rounded",
]

DTYPES: Mapping[str, Any] = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}

SchemeOf = Callable[[str], QuantScheme | None]


def dense_mlp(layer: LayerPlan) -> MlpPlan:
    """The MLP of a block without experts."""
    assert isinstance(layer.mlp, MlpPlan)
    return layer.mlp


def write_folder(folder: Path, config: dict[str, Any], tensors: Mapping[str, NDArray[Any]]) -> Path:
    """A Hugging Face folder with these tensors; its tokenizer is an empty file."""
    folder.mkdir(parents=True)
    specs = {name: TensorSpec.of(tensor) for name, tensor in tensors.items()}
    write_safetensors(folder / "model.safetensors", specs, tensors.items())
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")  # a source must have one; nothing here reads it
    return folder


def write_random(folder: Path, config: dict[str, Any], deviation: float = 1.0) -> Path:
    """A folder with normal random weights, norms around 1, of the type that `config` names."""
    random, dtype = np.random.default_rng(0), np.dtype(DTYPES[config["dtype"]])
    tensors = {
        name: random.normal(1.0 if "norm" in name else 0.0, deviation, shape).astype(dtype)
        for name, shape in plan_model(config).tensor_shapes().items()
    }
    return write_folder(folder, config, tensors)


def write_rounded(folder: Path, plain: Path, scheme_of: SchemeOf) -> Path:
    """The model of folder `plain` with each linear rounded to its scheme, None to leave it."""
    source = HfFolder(plain)
    write_checkpoint(folder, source, quantize_source(source, scheme_of), {}, "compressed-tensors")
    return folder


def random_quantized(scheme: QuantScheme, rows: int, columns: int, seed: int = 0) -> QuantizedTensor:
    """Random codes, with scales that the scheme's type holds."""
    random = np.random.default_rng(seed)
    groups = (rows, scheme.num_groups(columns))
    scales = random.uniform(1e-3, 1, groups).astype(DTYPES[scheme.scale_dtype]).astype(np.float32)
    codes = random.integers(0, scheme.max_code + 1, (rows, columns), np.uint8)
    if scheme.type == "float":
        codes[(codes & 0x7F) == 0x7F] = 0  # not a number
    zeros = None if scheme.symmetric else random.integers(0, scheme.max_code + 1, groups, np.uint8)
    return QuantizedTensor(scheme, codes, scales, zeros)


def round_to_nearest(weight: NDArray[Any], scheme: QuantScheme) -> QuantizedTensor:
    """The plainest quantizer: the range of each group, cut into equal steps; floats round by themselves.

    A static input scale is 2^-5.
    """
    weight = weight.astype(np.float32)
    rows, columns = weight.shape
    input_scale = 2.0**-5 if scheme.is_static else None
    if scheme.is_float4:
        return _round_to_float4(weight, scheme)
    if scheme.type == "float":
        return QuantizedTensor(scheme, *_round_to_float8(weight, scheme), input_scale=input_scale)
    groups = weight.reshape(rows, scheme.num_groups(columns), -1)
    if scheme.symmetric:
        steps = np.abs(groups).max(axis=2) / (scheme.max_code / 2)
    else:
        steps = (groups.max(axis=2).clip(0) - groups.min(axis=2).clip(None, 0)) / scheme.max_code
    scales = np.maximum(steps, 1e-4).astype(DTYPES[scheme.scale_dtype]).astype(np.float32)
    if scheme.symmetric:
        zeros = np.full(scales.shape, scheme.midpoint)
    else:
        zeros = np.clip(np.round(-groups.min(axis=2) / scales), 0, scheme.max_code)
    codes = np.clip(np.round(groups / scales[..., None]) + zeros[..., None], 0, scheme.max_code)
    return QuantizedTensor(
        scheme,
        codes.reshape(rows, columns).astype(np.uint8),
        scales,
        None if scheme.symmetric else zeros.astype(np.uint8),
        input_scale=input_scale,
    )


def _round_to_float4(weight: NDArray[np.float32], scheme: QuantScheme) -> QuantizedTensor:
    """Scales that bring the largest weight of each group near 6; the global scale is 64."""
    groups = weight.reshape(weight.shape[0], scheme.num_groups(weight.shape[1]), -1)
    scales = np.maximum(np.abs(groups).max(axis=2) / 6, 2.0**-10)
    if scheme.has_global_scale:
        scales = (scales * 64).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) / 64
    else:
        scales = np.exp2(np.ceil(np.log2(scales))).astype(np.float32)
    values = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    codes = np.abs(groups[..., None] / scales[..., None, None] - values).argmin(-1).astype(np.uint8)
    unit = 64.0 if scheme.has_global_scale else None
    return QuantizedTensor(scheme, codes.reshape(weight.shape), scales, global_scale=unit)


def _round_to_float8(
    weight: NDArray[np.float32], scheme: QuantScheme
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Codes, and the scale of each block of rows and columns, repeated for every row."""
    rows, columns = weight.shape
    groups, size = scheme.num_groups(columns), scheme.group_rows
    largest = np.abs(weight).reshape(rows, groups, -1).max(axis=2)
    blocks = np.stack([largest[row : row + size].max(axis=0) for row in range(0, rows, size)])
    scales = np.maximum(blocks / 448, 1e-6).astype(DTYPES[scheme.scale_dtype]).astype(np.float32)
    scales = np.repeat(scales, size, axis=0)[:rows]
    steps = weight / np.repeat(scales, columns // groups, axis=1)
    return np.clip(steps, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8), scales


def quantize_source(source: HfFolder, scheme_of: SchemeOf) -> dict[str, QuantizedTensor]:
    """Every linear of the model by `scheme_of(name)`, None to skip it."""
    quantized = {}
    for linear in plan_model(source.config).linears:
        scheme = scheme_of(linear.name)
        if scheme is not None:
            quantized[linear.name] = round_to_nearest(source.load(linear.weight), scheme)
    return quantized
