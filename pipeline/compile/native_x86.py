"""Compile target `native-x86`: a checkpoint as the files that the native kernels map into memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from gristmill.pipeline.compile.native_forms import Part, common_form, linear_part, quantized_part
from gristmill.pipeline.compile.target import OnProgress
from gristmill.runtime.checkpoint import Checkpoint, open_checkpoint
from gristmill.runtime.errors import UnsupportedError
from gristmill.runtime.executors.native.engine_file import (
    HEADER_BYTES,
    PLAN_FILE,
    WEIGHTS_FILE,
    EngineFile,
    StoredBlock,
    StoredTensor,
    StoredWeight,
    header_bytes,
    plan_bytes,
)
from gristmill.runtime.executors.native.plan_check import check_plan
from gristmill.runtime.executors.native.stored import (
    StoredLayer,
    StoredMixture,
    StoredMixtureLayer,
    StoredMlp,
)
from gristmill.runtime.files import make_folder, sha256_file, write_atomic, writing_whole
from gristmill.runtime.kernels.layout import (
    TILE_ROWS,
    RowBlock,
    WeightForm,
    interleave,
    pack_weight,
    padded_rows,
)
from gristmill.runtime.model_plan import LayerPlan, LinearPlan, MlpPlan, ModelPlan, MoePlan, NormPlan
from gristmill.runtime.scheme import QuantizedTensor

__all__ = ["compile_native", "require_supported"]

_MOST_HEAD_DIM = 256
_PAGE = 4096
_LINE = 64
_ROWS_AT_ONCE = 32 * TILE_ROWS


def compile_native(checkpoint: Path, out: Path, on_progress: OnProgress | None = None) -> None:
    """Write an engine into the folder `out` for the checkpoint folder; equal checkpoints give equal bytes.

    `on_progress(done, total)` counts layers. The linears of one fused weight
    are in memory at a time, no more. Each file appears whole or not at all,
    `plan.json` last: a folder without it is unfinished. Raises ModelError for
    a checkpoint that is wrong, UnsupportedError for what the native engine
    does not do, and StorageError.
    """
    opened = open_checkpoint(checkpoint)
    check_plan(opened.plan)
    require_supported(opened.plan)
    make_folder(out)
    path = out / WEIGHTS_FILE
    with writing_whole(path) as file:
        engine = _write(_Writer(file), opened, path, on_progress or (lambda done, total: None))
        file.flush()
        engine = replace(engine, sha256=sha256_file(Path(file.name)))
        (out / PLAN_FILE).unlink(missing_ok=True)  # it does not describe the weights that follow
    write_atomic(out / PLAN_FILE, plan_bytes(engine))


def require_supported(plan: ModelPlan) -> None:
    """Raise UnsupportedError, naming the layer, for a model that the engine can't run."""
    for layer in plan.layers:
        if layer.attention.head_dim > _MOST_HEAD_DIM:
            found = layer.attention.head_dim
            raise UnsupportedError(
                "native engine: head_dim", found=found, expected=f"at most {_MOST_HEAD_DIM}"
            )


@dataclass(slots=True)
class _Writer:
    """The weights file as far as it is written; tensors follow one another, aligned."""

    file: BinaryIO
    end: int = HEADER_BYTES

    def start(self, alignment: int) -> int:
        """Go to the next free place for a tensor and return it."""
        self.end += -self.end % alignment
        self.file.seek(self.end)
        return self.end

    def put(self, array: NDArray[Any]) -> None:
        """Append an array's bytes."""
        self.file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        self.end += array.nbytes


def _write(writer: _Writer, checkpoint: Checkpoint, path: Path, on_progress: OnProgress) -> EngineFile:
    """Fill the weights file, header last; the result lacks the file's hash."""
    plan = checkpoint.plan
    embedding = _write_embedding(writer, checkpoint)
    layers = []
    for done, layer in enumerate(plan.layers, start=1):
        layers.append(_write_layer(writer, checkpoint, layer))
        on_progress(done, len(plan.layers))
    final_norm = _write_norm(writer, checkpoint, plan.final_norm)
    head = _write_head(writer, checkpoint)
    size = writer.end + -writer.end % _PAGE
    writer.file.truncate(size)
    engine = EngineFile(
        path, size, "", plan, tuple(layers), embedding, final_norm, head, checkpoint.kv_scales
    )
    writer.file.seek(0)
    writer.file.write(header_bytes(engine))
    return engine


def _write_layer(writer: _Writer, checkpoint: Checkpoint, layer: LayerPlan) -> StoredBlock:
    attention = layer.attention
    q_norm, k_norm = attention.q_norm, attention.k_norm
    common = (
        _write_norm(writer, checkpoint, layer.input_norm),
        _write_norm(writer, checkpoint, layer.mlp_norm),
        None if q_norm is None else _write_norm(writer, checkpoint, q_norm),
        None if k_norm is None else _write_norm(writer, checkpoint, k_norm),
        _write_linears(writer, checkpoint, (attention.q, attention.k, attention.v)),
        _write_linears(writer, checkpoint, (attention.o,)),
    )
    if isinstance(layer.mlp, MoePlan):
        return StoredMixtureLayer(*common, _write_mixture(writer, checkpoint, layer.mlp))
    mlp = _write_mlp(writer, checkpoint, layer.mlp)
    return StoredLayer(*common, mlp.gate_up, mlp.down)


def _write_mixture(writer: _Writer, checkpoint: Checkpoint, mixture: MoePlan) -> StoredMixture:
    return StoredMixture(
        router=_write_router(writer, checkpoint, mixture),
        experts=tuple(_write_mlp(writer, checkpoint, expert) for expert in mixture.experts),
        shared=None if mixture.shared is None else _write_mlp(writer, checkpoint, mixture.shared),
    )


def _write_router(writer: _Writer, checkpoint: Checkpoint, mixture: MoePlan) -> StoredWeight:
    """In float32, which makes its input float32 too: a rounded logit could send a token elsewhere."""
    weights = [checkpoint.tensor(linear.weight).astype(np.float32) for linear in mixture.routers]
    parts = [
        linear_part(linear.name, weight, "float32")
        for linear, weight in zip(mixture.routers, weights, strict=True)
    ]
    return _write_parts(writer, checkpoint, mixture.routers, tuple(parts), interleaved=False)


def _write_mlp(writer: _Writer, checkpoint: Checkpoint, mlp: MlpPlan) -> StoredMlp:
    return StoredMlp(
        gate_up=_write_linears(writer, checkpoint, (mlp.gate, mlp.up), interleaved=True),
        down=_write_linears(writer, checkpoint, (mlp.down,)),
    )


def _write_embedding(writer: _Writer, checkpoint: Checkpoint) -> StoredTensor:
    table = checkpoint.tensor(f"{checkpoint.plan.embedding}.weight")
    rows, columns = table.shape
    if table.dtype == ml_dtypes.bfloat16:
        offset = writer.start(_PAGE)
        writer.put(table)
        return StoredTensor("bfloat16", (rows, columns), offset, table.nbytes)
    offset = writer.start(_PAGE)
    for first in range(0, rows, _ROWS_AT_ONCE):
        writer.put(table[first : first + _ROWS_AT_ONCE].astype(np.float32))
    return StoredTensor("float32", (rows, columns), offset, rows * columns * 4)


def _write_norm(writer: _Writer, checkpoint: Checkpoint, norm: NormPlan) -> StoredTensor:
    return _write_vector(writer, checkpoint.tensor(f"{norm.name}.weight").astype(np.float32))


def _write_vector(writer: _Writer, vector: NDArray[np.float32]) -> StoredTensor:
    offset = writer.start(_LINE)
    writer.put(vector)
    return StoredTensor("float32", vector.shape, offset, vector.nbytes)


def _write_head(writer: _Writer, checkpoint: Checkpoint) -> StoredWeight:
    """The output projection: at 8 bits unless the checkpoint has it quantized already."""
    plan = checkpoint.plan
    linear = plan.head or LinearPlan(plan.embedding, plan.hidden_size, plan.vocab_size)
    weight = checkpoint.tensor(plan.head_weight) if plan.head is None else checkpoint.weight(plan.head)
    if isinstance(weight, QuantizedTensor):
        part = linear_part(linear.name, weight, plan.dtype)
    else:
        part = quantized_part(plan.head_weight, weight)
    return _write_parts(writer, checkpoint, (linear,), (part,), interleaved=False)


def _write_linears(
    writer: _Writer, checkpoint: Checkpoint, linears: tuple[LinearPlan, ...], *, interleaved: bool = False
) -> StoredWeight:
    dtype = checkpoint.plan.dtype
    parts = tuple(linear_part(linear.name, checkpoint.weight(linear), dtype) for linear in linears)
    return _write_parts(writer, checkpoint, linears, parts, interleaved=interleaved)


def _write_parts(
    writer: _Writer,
    checkpoint: Checkpoint,
    linears: tuple[LinearPlan, ...],
    parts: tuple[Part, ...],
    *,
    interleaved: bool,
) -> StoredWeight:
    form = common_form(parts)
    offset = writer.start(_PAGE)
    for block in _interleaved_blocks(form, *parts) if interleaved else _blocks(form, parts):
        writer.put(pack_weight(form, block))
    size = writer.end - offset
    bias = _fused_bias(checkpoint, linears, interleaved=interleaved)
    return StoredWeight(
        kind=form.kind,
        rows=size // form.tile_bytes * TILE_ROWS,
        columns=form.columns,
        group=form.group,
        zero_points=form.zero_points,
        offset=offset,
        bytes=size,
        in_features=linears[0].in_features,
        outputs=tuple(part.outputs for part in parts),
        bias=None if bias is None else _write_vector(writer, bias),
    )


def _blocks(form: WeightForm, parts: Sequence[Part]) -> Iterator[RowBlock]:
    """The rows of each part in turn, whole tiles at a time but for its end."""
    for part in parts:
        for first in range(0, part.outputs, _ROWS_AT_ONCE):
            yield part.rows(form, first, min(first + _ROWS_AT_ONCE, part.outputs))


def _interleaved_blocks(form: WeightForm, gate: Part, up: Part) -> Iterator[RowBlock]:
    for first in range(0, gate.outputs, _ROWS_AT_ONCE):
        last = min(first + _ROWS_AT_ONCE, gate.outputs)
        yield interleave(form, gate.rows(form, first, last), up.rows(form, first, last))


def _fused_bias(
    checkpoint: Checkpoint, linears: tuple[LinearPlan, ...], *, interleaved: bool
) -> NDArray[np.float32] | None:
    """One entry a padded row in the order of the tiles, zero where a linear has no bias; None if none has."""
    if not any(linear.bias for linear in linears):
        return None
    biases = [_bias(checkpoint, linear) for linear in linears]
    if interleaved:
        half = TILE_ROWS // 2
        padded = [np.pad(bias, (0, -len(bias) % half)).reshape(-1, half) for bias in biases]
        return np.stack(padded, axis=1).reshape(-1)
    return np.concatenate([np.pad(bias, (0, padded_rows(len(bias)) - len(bias))) for bias in biases])


def _bias(checkpoint: Checkpoint, linear: LinearPlan) -> NDArray[np.float32]:
    if not linear.bias:
        return np.zeros(linear.out_features, np.float32)
    return checkpoint.tensor(f"{linear.name}.bias").astype(np.float32)
