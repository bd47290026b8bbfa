"""Engine folders of any shape with random weights, for speed alone: nothing a model says comes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.architectures import plan_model
from gristmill.runtime.executors.native.engine_file import (
    HEADER_BYTES,
    PLAN_FILE,
    WEIGHTS_FILE,
    EngineFile,
    StoredTensor,
    StoredWeight,
    header_bytes,
    plan_bytes,
    read_engine_file,
)
from gristmill.runtime.executors.native.stored import StoredLayer
from gristmill.runtime.files import sha256_file, write_atomic
from gristmill.runtime.kernels.layout import TILE_ROWS, WeightForm, padded_columns, padded_rows
from gristmill.runtime.model_plan import LinearPlan, ModelPlan
from tests.tiny_checkpoints import dense_mlp

__all__ = ["SHAPES", "random_engine"]

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "7b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
}
_GROUP = 64
_SCALE = 2.0**-8
_PAGE = 4096
_LINE = 64


def random_engine(config: Mapping[str, Any], folder: Path) -> EngineFile:
    """An engine for a `config.json`, written into `folder` if it is not there: int4 g64, int8 head."""
    if not (folder / PLAN_FILE).exists():
        folder.mkdir(parents=True, exist_ok=True)
        engine = _lay_out(plan_model(config), folder / WEIGHTS_FILE)
        unfinished = engine.path.with_suffix(".unfinished")
        with unfinished.open("wb") as file:
            _fill(file, engine)
        unfinished.rename(engine.path)
        engine = replace(engine, sha256=sha256_file(engine.path))
        write_atomic(folder / PLAN_FILE, plan_bytes(engine))
    return read_engine_file(folder)


class _Places:
    """Offsets one after the other."""

    def __init__(self) -> None:
        self.end = HEADER_BYTES

    def take(self, size: int, alignment: int) -> int:
        start = self.end + -self.end % alignment
        self.end = start + size
        return start

    def vector(self, size: int) -> StoredTensor:
        return StoredTensor("float32", (size,), self.take(4 * size, _LINE), 4 * size)

    def weight(
        self, linears: Iterable[LinearPlan], *, head: bool = False, interleaved: bool = False
    ) -> StoredWeight:
        parts = tuple(linears)
        outputs = tuple(part.out_features for part in parts)
        rows = padded_rows(2 * outputs[0]) if interleaved else sum(map(padded_rows, outputs))
        columns = padded_columns(parts[0].in_features)
        form = WeightForm("int8", columns, columns) if head else WeightForm("int4", columns, _GROUP)
        size = rows // TILE_ROWS * form.tile_bytes
        offset = self.take(size, _PAGE)
        features = parts[0].in_features
        return StoredWeight(
            form.kind, rows, columns, form.group, False, offset, size, features, outputs, None
        )


def _lay_out(plan: ModelPlan, path: Path) -> EngineFile:
    places = _Places()
    assert plan.head is not None
    size = 2 * plan.vocab_size * plan.hidden_size
    table = (plan.vocab_size, plan.hidden_size)
    embedding = StoredTensor("bfloat16", table, places.take(size, _PAGE), size)
    layers = []
    for layer in plan.layers:
        attention, mlp = layer.attention, dense_mlp(layer)
        layers.append(
            StoredLayer(
                input_norm=places.vector(plan.hidden_size),
                mlp_norm=places.vector(plan.hidden_size),
                q_norm=None,
                k_norm=None,
                qkv=places.weight((attention.q, attention.k, attention.v)),
                o=places.weight((attention.o,)),
                gate_up=places.weight((mlp.gate, mlp.up), interleaved=True),
                down=places.weight((mlp.down,)),
            )
        )
    final_norm = places.vector(plan.hidden_size)
    head = places.weight((plan.head,), head=True)
    end = places.end + -places.end % _PAGE
    return EngineFile(path, end, "", plan, tuple(layers), embedding, final_norm, head)


def _fill(file: BinaryIO, engine: EngineFile) -> None:
    """Random codes, one scale, norms of one; weights of one shape share their bytes, which costs no speed."""
    random = np.random.default_rng(0)
    made: dict[tuple[str, int, int], NDArray[np.uint8]] = {}

    def put(offset: int, data: NDArray[Any]) -> None:
        file.seek(offset)
        file.write(data.reshape(-1).view(np.uint8).data)

    def put_weight(weight: StoredWeight) -> None:
        key = (weight.kind, weight.rows, weight.columns)
        if key not in made:
            made[key] = _random_tiles(weight, random)
        put(weight.offset, made[key])

    table = random.standard_normal(engine.embedding.shape, dtype=np.float32)
    put(engine.embedding.offset, (table.view(np.uint32) >> 16).astype(np.uint16))  # bfloat16, cut off
    for layer in engine.layers:
        for norm in (layer.input_norm, layer.mlp_norm):
            put(norm.offset, np.ones(norm.shape, np.float32))
        for weight in layer.weights.values():
            put_weight(weight)
    put(engine.final_norm.offset, np.ones(engine.final_norm.shape, np.float32))
    put_weight(engine.head)
    file.truncate(engine.bytes)
    put(0, np.frombuffer(header_bytes(engine), np.uint8))


def _random_tiles(weight: StoredWeight, random: np.random.Generator) -> NDArray[np.uint8]:
    form = WeightForm(weight.kind, weight.columns, weight.group, weight.zero_points)
    tiles = weight.rows // TILE_ROWS
    codes = np.frombuffer(random.bytes(tiles * form.groups * form.code_bytes), np.uint8)
    kind = np.float16 if weight.kind == "int4" else np.float32
    scales = np.full((tiles, form.groups, TILE_ROWS), _SCALE, kind).view(np.uint8)
    return np.concatenate([codes.reshape(tiles, form.groups, -1), scales], axis=2)
