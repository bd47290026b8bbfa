"""Llama 1 to 3 (Touvron et al. 2023, Dubey et al. 2024): pre-norm, rotary embedding, SwiGLU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gristmill.runtime.architectures.attributes import check_attributes
from gristmill.runtime.architectures.config import read_switch
from gristmill.runtime.architectures.decoder import (
    attention,
    decoder,
    gated_mlp,
    pre_norm_block,
    read_activation,
    read_sizes,
)
from gristmill.runtime.architectures.rope import read_rope
from gristmill.runtime.model_plan import LayerPlan, ModelPlan

__all__ = ["plan_llama"]


def plan_llama(config: Mapping[str, Any]) -> ModelPlan:
    """The plan of a `LlamaForCausalLM`."""
    check_attributes(config, "LlamaForCausalLM", also_read=("attention_bias", "mlp_bias"))
    sizes = read_sizes(config, kv_heads_default=True)
    rope = read_rope(config, sizes.head_dim)
    activation = read_activation(config)
    attention_bias = read_switch(config, "attention_bias", False)
    mlp_bias = read_switch(config, "mlp_bias", False)

    def block(index: int) -> LayerPlan:
        name = f"model.layers.{index}"
        return pre_norm_block(
            index,
            sizes,
            attention(f"{name}.self_attn", sizes, rope, qkv_bias=attention_bias, o_bias=attention_bias),
            gated_mlp(f"{name}.mlp", sizes, activation, bias=mlp_bias),
        )

    return decoder(config, sizes, map(block, range(sizes.layers)))
