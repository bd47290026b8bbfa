"""One small decoder block with random weights, and what it computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gristmill.runtime.architectures import plan_model
from gristmill.runtime.executors.reference.blocks import causal_attention, decoder_block, rotary_tables
from gristmill.runtime.executors.reference.linears import UNQUANTIZED, Observe, Schemes
from gristmill.runtime.model_plan import LayerPlan

__all__ = ["block_output", "random_weights", "small_layer"]

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen2_moe": "Qwen2MoeForCausalLM"}
_OWN: Mapping[str, Mapping[str, Any]] = {
    "qwen2_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48,
    }
}
_CONFIG: Mapping[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
}


def small_layer(family: str = "llama", kv_heads: int = 2) -> LayerPlan:
    """A block with grouped heads; qwen2 has biases at q, k and v, qwen2_moe experts and a shared one."""
    named = {"model_type": family, "architectures": [_CLASSES[family]], "num_key_value_heads": kv_heads}
    return plan_model({**_CONFIG, **_OWN.get(family, {}), **named}).layers[0]


def random_weights(layer: LayerPlan, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Always the same: normal weights whose outputs are of the inputs' size, norms around 1."""
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for linear in (*layer.linears, *layer.mlp.routers):
        shape = (linear.out_features, linear.in_features)
        weights[linear.weight] = torch.randn(shape, generator=generator) / linear.in_features**0.5
        if linear.bias:
            weights[f"{linear.name}.bias"] = torch.randn(linear.out_features, generator=generator)
    for norm in (layer.input_norm, layer.mlp_norm):
        weights[f"{norm.name}.weight"] = torch.rand(norm.size, generator=generator) + 0.5
    return {name: tensor.to(dtype) for name, tensor in weights.items()}


def block_output(
    layer: LayerPlan,
    weights: Mapping[str, torch.Tensor],
    hidden: torch.Tensor,
    observe: Observe | None = None,
    schemes: Schemes = UNQUANTIZED,
) -> torch.Tensor:
    """The block over sequences [B, T, hidden] that start at position 0, in float32."""
    assert layer.attention.rope is not None
    rotary = rotary_tables(layer.attention.rope, torch.arange(hidden.shape[1]), torch.float32)
    full = {name: tensor.float() for name, tensor in weights.items()}
    return decoder_block(layer, full, hidden, rotary, causal_attention, observe, schemes)
