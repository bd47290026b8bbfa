"""Tiny random models of every family, with transformers as the oracle."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from gristmill.runtime.architectures import plan_model
from gristmill.runtime.kv_scales import KVScales
from gristmill.runtime.model_plan import LinearPlan, ModelPlan
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme
from gristmill.runtime.sources.base import Tensor

_SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 50_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
_WITH_EXPERTS = ("mixtral", "qwen2_moe", "qwen3_moe")
_QWEN3_EXPERTS: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "mlp_only_layers": [1],
}
_EXPERTS: dict[str, Any] = {**_QWEN3_EXPERTS, "shared_expert_intermediate_size": 40}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama untied": ("llama", {"tie_word_embeddings": False}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama with one key head a query head": ("llama", {"num_key_value_heads": 4}),
    "llama with a single key head": ("llama", {"num_key_value_heads": 1}),
    "llama with wide heads": ("llama", {"head_dim": 20}),
    "llama with gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama with linear rope": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    ),
    "llama with llama3 rope": ("llama", {"rope_parameters": _LLAMA3}),
    "llama with yarn rope": ("llama", {"rope_parameters": _YARN}),
    "mistral with a window": ("mistral", {"sliding_window": 5}),
    "mistral without a window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2 with windows": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
    ),
    "qwen3": ("qwen3", {"head_dim": 20}),
    "qwen3 with layer types": (
        "qwen3",
        {
            "head_dim": 20,
            "use_sliding_window": True,
            "sliding_window": 3,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "mixtral": ("mixtral", {"num_local_experts": 4, "head_dim": 20}),
    "mixtral with a window": ("mixtral", {"num_local_experts": 3, "sliding_window": 5}),
    "qwen2 with experts": ("qwen2_moe", _EXPERTS),
    "qwen2 with experts and windows": (
        "qwen2_moe",
        {
            **_EXPERTS,
            "use_sliding_window": True,
            "sliding_window": 7,
            "max_window_layers": 3,
            "norm_topk_prob": True,
            "decoder_sparse_step": 2,
            "qkv_bias": False,
        },
    ),
    "qwen3 with experts": ("qwen3_moe", {**_QWEN3_EXPERTS, "head_dim": 20, "norm_topk_prob": True}),
    "qwen3 with experts and windows": (
        "qwen3_moe",
        {**_QWEN3_EXPERTS, "head_dim": 16, "use_sliding_window": True, "sliding_window": 6},
    ),
    "smollm3": ("smollm3", {}),
    "smollm3 with windows": ("smollm3", {"use_sliding_window": True, "sliding_window": 6}),
}
MIXTURES = tuple(name for name, (model_type, _) in FAMILIES.items() if model_type in _WITH_EXPERTS)
"""Those with experts."""


@dataclass(frozen=True)
class InMemoryWeights:
    """A `WeightSource` over arrays; `quantized` weights stand in for those of `tensors`."""

    plan: ModelPlan
    tensors: Mapping[str, Tensor]
    quantized: Mapping[str, QuantizedTensor] = field(default_factory=dict)
    kv_scales: KVScales = ()

    @property
    def schemes(self) -> Mapping[str, QuantScheme]:
        return {name: tensor.scheme for name, tensor in self.quantized.items()}

    def weight(self, linear: LinearPlan) -> QuantizedTensor | Tensor:
        return self.quantized.get(linear.name, self.tensors[linear.weight])

    def tensor(self, name: str) -> Tensor:
        return self.tensors[name]


@dataclass(frozen=True)
class TinyModel:
    """A random model; `oracle` is the transformers one in float32."""

    weights: InMemoryWeights
    oracle: Any

    def logits(self, token_ids: list[int]) -> NDArray[np.float32]:
        """The oracle's logits of one sequence, float32 [tokens, vocab]."""
        import torch

        with torch.no_grad():
            logits: NDArray[np.float32] = self.oracle(torch.tensor([token_ids])).logits[0].numpy()
        return logits


@pytest.fixture(scope="session")
def tiny_model() -> Callable[[str], TinyModel]:
    """Makes the model of a name in `FAMILIES`, once."""
    made: dict[str, TinyModel] = {}

    def make(name: str) -> TinyModel:
        if name not in made:
            made[name] = _make_tiny_model(*FAMILIES[name])
        return made[name]

    return make


def _stored_tensors(model: Any) -> dict[str, NDArray[np.float32]]:
    """What a checkpoint of the model holds: transformers fuses experts in memory and parts them on disk."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def _make_tiny_model(model_type: str, changes: dict[str, Any]) -> TinyModel:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(model_type, **{**_SIZES, **changes})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:  # norms are all ones and biases all zeros: give them something to say
                parameter.normal_(1.0 if "norm" in name else 0.0, 0.3)
    plan = plan_model(json.loads(config.to_json_string()))
    return TinyModel(InMemoryWeights(plan, _stored_tensors(model)), model)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `family` runs for every family, `dense_family` and `mixture` are parts of them."""
    if "family" in metafunc.fixturenames:
        metafunc.parametrize("family", FAMILIES)
    if "dense_family" in metafunc.fixturenames:
        metafunc.parametrize("dense_family", [name for name in FAMILIES if name not in MIXTURES])
    if "mixture" in metafunc.fixturenames:
        metafunc.parametrize("mixture", MIXTURES)
