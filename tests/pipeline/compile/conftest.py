"""Tiny checkpoints of every family, and an engine's weights as floats again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gristmill.runtime.architectures import plan_model
from gristmill.runtime.executors.native.engine_file import EngineFile, StoredBlock, StoredTensor, StoredWeight
from gristmill.runtime.executors.native.stored import StoredLayer, StoredMlp
from gristmill.runtime.formats.write import write_checkpoint
from gristmill.runtime.kernels.layout import TILE_ROWS, WeightForm, padded_rows, unpack_weight
from gristmill.runtime.model_plan import LayerPlan, LinearPlan, MlpPlan, MoePlan
from gristmill.runtime.scheme import QuantizedTensor
from gristmill.runtime.sources.hf_folder import HfFolder
from tests.tiny_checkpoints import DTYPES, SchemeOf, dense_mlp, random_quantized, write_random

Arrays = dict[str, NDArray[Any]]
MakeCheckpoint = Callable[..., Path]

_SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "bfloat16",
}
_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
FAMILIES: Mapping[str, dict[str, Any]] = {
    "llama tied": {"model_type": "llama", "tie_word_embeddings": True},
    "llama untied": {"model_type": "llama", "tie_word_embeddings": False},
    "llama with biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama with odd sizes": {
        "model_type": "llama",
        "hidden_size": 40,
        "head_dim": 12,
        "intermediate_size": 90,
    },
    "mistral with a window": {"model_type": "mistral", "sliding_window": 5},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 20},
    "smollm3": {"model_type": "smollm3"},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 3},
    "qwen2 with experts": {
        **_EXPERTS,
        "model_type": "qwen2_moe",
        "shared_expert_intermediate_size": 96,
        "mlp_only_layers": [0],
    },
    "qwen3 with experts": {**_EXPERTS, "model_type": "qwen3_moe", "head_dim": 20},
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `family` runs for every family."""
    if "family" in metafunc.fixturenames:
        metafunc.parametrize("family", FAMILIES)


def write_plain(folder: Path, family: str, **changes: Any) -> Path:
    """A folder with random weights; `changes` to its `config.json`."""
    model_type = FAMILIES[family]["model_type"]
    config = {**_SIZES, "architectures": [_CLASSES[model_type]], **FAMILIES[family], **changes}
    return write_random(folder, config)


@pytest.fixture
def make_checkpoint(tmp_path: Path) -> MakeCheckpoint:
    """`make(family, scheme_of, **changes)`: plain without `scheme_of`, else packed linear by linear."""

    def make(family: str = "llama tied", scheme_of: SchemeOf | None = None, **changes: Any) -> Path:
        plain = write_plain(tmp_path / "plain", family, **changes)
        if scheme_of is None:
            return plain
        source = HfFolder(plain)
        quantized = {
            linear.name: random_quantized(scheme, linear.out_features, linear.in_features, index)
            for index, linear in enumerate(plan_model(source.config).linears)
            if (scheme := scheme_of(linear.name)) is not None
        }
        write_checkpoint(tmp_path / "packed", source, quantized, {}, "compressed-tensors")
        return tmp_path / "packed"

    return make


def stored_array(engine: EngineFile, tensor: StoredTensor) -> NDArray[Any]:
    dtype = np.dtype(DTYPES[tensor.dtype])
    data = engine.path.read_bytes()[tensor.offset : tensor.offset + tensor.bytes]
    return np.frombuffer(data, dtype).reshape(tensor.shape)


def stored_rows(engine: EngineFile, weight: StoredWeight) -> NDArray[np.float32]:
    form = WeightForm(weight.kind, weight.columns, weight.group, weight.zero_points)
    data = engine.path.read_bytes()[weight.offset : weight.offset + weight.bytes]
    return unpack_weight(form, np.frombuffer(data, np.uint8).reshape(-1, form.tile_bytes))


def parts_of(rows: NDArray[Any], outputs: tuple[int, ...], *, interleaved: bool) -> list[NDArray[Any]]:
    """The parts of a fused weight (or bias), each without its padding, which must be zero."""
    if interleaved:
        tiles = rows.reshape(-1, 2, TILE_ROWS // 2, *rows.shape[1:])
        parts = [tiles[:, half].reshape(-1, *rows.shape[1:]) for half in (0, 1)]
    else:
        ends = np.cumsum([padded_rows(output) for output in outputs])
        parts = np.split(rows, ends[:-1])
    assert not any(part[output:].any() for part, output in zip(parts, outputs, strict=True))
    return [part[:output] for part, output in zip(parts, outputs, strict=True)]


Placed = tuple[tuple[LinearPlan, ...], StoredWeight, bool]  # interleaved?


def _placed(stored: StoredBlock, layer: LayerPlan) -> Iterator[Placed]:
    """The linears of each weight of a block."""
    attention = layer.attention
    yield (attention.q, attention.k, attention.v), stored.qkv, False
    yield (attention.o,), stored.o, False
    mlps: list[tuple[MlpPlan, StoredLayer | StoredMlp]] = []
    if isinstance(stored, StoredLayer):
        mlps.append((dense_mlp(layer), stored))
    else:
        assert isinstance(layer.mlp, MoePlan)
        yield layer.mlp.routers, stored.mixture.router, False
        shared = () if stored.mixture.shared is None else (stored.mixture.shared,)
        mlps.extend(zip(layer.mlp.mlps, (*stored.mixture.experts, *shared), strict=True))
    for mlp, weights in mlps:
        yield (mlp.gate, mlp.up), weights.gate_up, True
        yield (mlp.down,), weights.down, False


def _layer_arrays(engine: EngineFile, stored: StoredBlock, layer: LayerPlan) -> Arrays:
    arrays: Arrays = {}
    attention = layer.attention
    norms = zip(
        (layer.input_norm, layer.mlp_norm, attention.q_norm, attention.k_norm),
        (stored.input_norm, stored.mlp_norm, stored.q_norm, stored.k_norm),
        strict=True,
    )
    for norm, tensor in norms:
        if norm is not None and tensor is not None:
            arrays[f"{norm.name}.weight"] = stored_array(engine, tensor)
    for linears, weight, interleaved in _placed(stored, layer):
        rows = parts_of(stored_rows(engine, weight), weight.outputs, interleaved=interleaved)
        for linear, part in zip(linears, rows, strict=True):
            assert not part[:, linear.in_features :].any()
            arrays[linear.weight] = part[:, : linear.in_features]
        if weight.bias is not None:
            entries = parts_of(stored_array(engine, weight.bias), weight.outputs, interleaved=interleaved)
            names = [f"{linear.name}.bias" for linear in linears]
            arrays.update(zip(names, entries, strict=True))
    return arrays


@pytest.fixture
def engine_arrays() -> Callable[[EngineFile], Arrays]:
    """Every tensor of an engine's blocks by its checkpoint name, unpacked, without padding."""

    def arrays(engine: EngineFile) -> Arrays:
        found: Arrays = {}
        for stored, layer in zip(engine.layers, engine.plan.layers, strict=True):
            found |= _layer_arrays(engine, stored, layer)
        return found

    return arrays


@pytest.fixture
def head_rows() -> Callable[[EngineFile], NDArray[np.float32]]:
    """The output projection of an engine, unpacked, without padding."""

    def rows(engine: EngineFile) -> NDArray[np.float32]:
        padded = stored_rows(engine, engine.head)
        return padded[: engine.plan.vocab_size, : engine.plan.hidden_size]

    return rows


@pytest.fixture
def read_tensor() -> Callable[[EngineFile, StoredTensor], NDArray[Any]]:
    """`stored_array`."""
    return stored_array


@pytest.fixture
def quantized() -> Callable[..., QuantizedTensor]:
    """`random_quantized`."""
    return random_quantized
