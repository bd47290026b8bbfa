"""Tiny models as native engines, and what the tests of the native executor do with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from gristmill.pipeline.compile.native_x86 import compile_native
from gristmill.runtime.architectures import plan_model
from gristmill.runtime.executors.base import Executor, KVCacheConfig, KVDtype, SequenceStep
from gristmill.runtime.executors.native.engine_file import EngineFile, read_engine_file
from gristmill.runtime.executors.native.executor import NativeExecutor
from gristmill.runtime.kv_scales import KVScales
from gristmill.runtime.model_plan import LinearPlan, ModelPlan, MoePlan
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme
from gristmill.runtime.settings import Compute, ExecutorOptions
from gristmill.runtime.sources.base import Tensor
from tests.tiny_checkpoints import SchemeOf, write_random, write_rounded

__all__ = [
    "BLOCK",
    "KV_TYPES",
    "MIXTURES",
    "NUM_BLOCKS",
    "SCHEMES",
    "SHAPES",
    "VOCABULARY",
    "OpenExecutor",
    "RoundedHead",
    "TinyEngine",
    "WeightSource",
    "all_rows",
    "compiled",
    "open_executor",
    "random_tokens",
    "relative_error",
    "write_tiny",
]

BLOCK = 16
NUM_BLOCKS = 192
VOCABULARY = 97
KV_TYPES: tuple[KVDtype, ...] = ("float32", "bfloat16", "float16", "fp8", "int8", "int4")

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "dtype": "bfloat16",
}
_LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
SHAPES: Mapping[str, dict[str, Any]] = {
    "shared key heads": _LLAMA,
    "a single key head": {**_LLAMA, "num_attention_heads": 8, "num_key_value_heads": 1},
    "a window": {
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "sliding_window": 37,
    },
    "query and key norms": {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "head_dim": 20,
    },
}
_QWEN_EXPERTS = {"moe_intermediate_size": 128, "num_experts": 6, "num_experts_per_tok": 3}
MIXTURES: Mapping[str, dict[str, Any]] = {
    "mixtral": {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "qwen2 with experts": {
        **_QWEN_EXPERTS,
        "model_type": "qwen2_moe",
        "architectures": ["Qwen2MoeForCausalLM"],
        "shared_expert_intermediate_size": 64,
        "mlp_only_layers": [1],
    },
    "qwen3 with experts": {
        **_QWEN_EXPERTS,
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "norm_topk_prob": True,
        "decoder_sparse_step": 2,
    },
}
"""Which experts a token takes is as good as certain: see `_route_by_embedding`."""

_MIXED = {
    "q_proj": QuantScheme(4, 32, symmetric=True),
    "k_proj": QuantScheme(4, 64, symmetric=False),
    "v_proj": QuantScheme(3, -1, symmetric=True),
    "gate_proj": QuantScheme(4, 32, symmetric=False),
    "up_proj": QuantScheme(4, 32, symmetric=False),
    "down_proj": QuantScheme(8, 64, symmetric=True),
}


def _everywhere(bits: int, group_size: int, *, symmetric: bool) -> SchemeOf:
    scheme = QuantScheme(bits, group_size, symmetric)
    return lambda name: scheme


SCHEMES: Mapping[str, SchemeOf | None] = {
    "plain": None,
    "4 bits, groups of 32": _everywhere(4, 32, symmetric=True),
    "4 bits, groups of 64": _everywhere(4, 64, symmetric=True),
    "4 bits, groups of 32, zero points": _everywhere(4, 32, symmetric=False),
    "4 bits, groups of 64, zero points": _everywhere(4, 64, symmetric=False),
    "4 bits a row": _everywhere(4, -1, symmetric=True),
    "8 bits, groups of 32": _everywhere(8, 32, symmetric=True),
    "8 bits a row, zero points": _everywhere(8, -1, symmetric=False),
    "2 bits, groups of 32": _everywhere(2, 32, symmetric=False),
    "3 bits, groups of 64": _everywhere(3, 64, symmetric=True),
    "mixed": lambda name: _MIXED.get(name.rpartition(".")[2]),
}


class WeightSource(Protocol):
    """Weights by plan, as the reference executor takes them."""

    @property
    def plan(self) -> ModelPlan: ...

    @property
    def schemes(self) -> Mapping[str, QuantScheme]: ...
    @property
    def kv_scales(self) -> KVScales: ...
    def weight(self, linear: LinearPlan) -> QuantizedTensor | Tensor: ...
    def tensor(self, name: str) -> Tensor: ...


@dataclass(frozen=True)
class TinyEngine:
    """An engine, and the weights that it was compiled from."""

    file: EngineFile
    source: WeightSource


class OpenExecutor(Protocol):
    """`open_executor` as the fixture that closes what it opened."""

    def __call__(self, engine: EngineFile, **settings: Any) -> NativeExecutor: ...


@dataclass(frozen=True)
class RoundedHead:
    """Weights whose output projection is rounded to int8 with a scale a row, as engines hold it."""

    source: WeightSource

    @property
    def plan(self) -> ModelPlan:
        plan = self.source.plan
        return replace(plan, head=LinearPlan("rounded_head", plan.hidden_size, plan.vocab_size))

    @property
    def schemes(self) -> Mapping[str, QuantScheme]:
        return self.source.schemes

    @property
    def kv_scales(self) -> KVScales:
        return self.source.kv_scales

    def weight(self, linear: LinearPlan) -> QuantizedTensor | Tensor:
        if linear.name != "rounded_head":
            return self.source.weight(linear)
        exact = self.source.tensor(self.source.plan.head_weight).astype(np.float32)
        step = np.abs(exact).max(axis=1, keepdims=True) / 127
        rounded: NDArray[np.float32] = np.rint(exact / np.where(step > 0, step, 1)) * step
        return rounded

    def tensor(self, name: str) -> Tensor:
        return self.source.tensor(name)


def write_tiny(folder: Path, shape: str, scheme: str, **changes: Any) -> Path:
    """A checkpoint in `folder` of a shape and scheme by name; `changes` to its `config.json`."""
    config = {**_SIZES, **{**SHAPES, **MIXTURES}[shape], **changes}
    plain = write_random(folder / "plain", config, deviation=0.2)
    if shape in MIXTURES:
        _route_by_embedding(plain, config)
    scheme_of = SCHEMES[scheme]
    return plain if scheme_of is None else write_rounded(folder / "rounded", plain, scheme_of)


def _route_by_embedding(folder: Path, config: dict[str, Any]) -> None:
    """Let the first channels, which no layer writes to, choose the experts, and far from any tie.

    Rounding would otherwise send some tokens to other experts, which no tolerance allows for.
    """
    tensors = load_file(folder / "model.safetensors")
    layers = plan_model(config).layers
    experts = max(len(layer.mlp.experts) for layer in layers if isinstance(layer.mlp, MoePlan))
    ranks = np.tile(np.linspace(-1.5, 1.5, experts), (config["vocab_size"], 1))
    tensors["model.embed_tokens.weight"][:, :experts] = np.random.default_rng(1).permuted(ranks, axis=1)
    for layer in layers:
        mlps = layer.mlp.mlps if isinstance(layer.mlp, MoePlan) else (layer.mlp,)
        for writer in (layer.attention.o, *(mlp.down for mlp in mlps)):
            tensors[writer.weight][:experts] = 0
        if isinstance(layer.mlp, MoePlan):
            tensors[layer.mlp.router.weight][:] = 4 * np.eye(experts, config["hidden_size"])
            tensors[f"{layer.mlp_norm.name}.weight"][:experts] = 1
    save_file(tensors, folder / "model.safetensors")


def compiled(checkpoint: Path, out: Path) -> EngineFile:
    """The engine of a checkpoint folder."""
    compile_native(checkpoint, out)
    return read_engine_file(out)


def open_executor(
    engine: EngineFile,
    *,
    blocks: int = NUM_BLOCKS,
    block_size: int = BLOCK,
    kv: KVDtype = "float32",
    compute: Compute = "int8",
    threads: int = 1,
    instruction_set: str = "",
    debug_nan: bool = False,
    profile: bool = False,
) -> NativeExecutor:
    """An executor over `engine`; an empty instruction set is the machine's best."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRISTMILL_ISA", instruction_set)
        return NativeExecutor(
            engine,
            KVCacheConfig(blocks, block_size, kv),
            ExecutorOptions(compute, threads, debug_nan, profile),
        )


def random_tokens(seed: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCABULARY, count)]


def all_rows(
    executor: Executor, tokens: Sequence[int], table: Sequence[int] | None = None
) -> NDArray[np.float32]:
    """Logits of every token of a sequence that is computed alone, in one step."""
    blocks = range(-(-len(tokens) // executor.cache.block_size)) if table is None else table
    return executor.execute([SequenceStep(tokens, 0, blocks, "all")]).copy()


def relative_error(found: NDArray[np.float32], exact: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
