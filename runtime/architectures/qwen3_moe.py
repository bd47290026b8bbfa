"""Qwen3-MoE (Yang et al. 2025, section 2): Qwen3 with many small experts and no shared one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gristmill.runtime.architectures.attributes import check_attributes
from gristmill.runtime.architectures.config import read_int, read_switch
from gristmill.runtime.architectures.decoder import (
    attention,
    decoder,
    gated_mlp,
    pre_norm_block,
    read_activation,
    read_sizes,
)
from gristmill.runtime.architectures.experts import QWEN_EXPERT_KEYS, ROUTER_TRAINING, read_qwen_experts
from gristmill.runtime.architectures.rope import read_rope
from gristmill.runtime.model_plan import LayerPlan, MlpPlan, ModelPlan, MoePlan

__all__ = ["plan_qwen3_moe"]


def plan_qwen3_moe(config: Mapping[str, Any]) -> ModelPlan:
    """The plan of a `Qwen3MoeForCausalLM`; with `use_sliding_window` every layer has the window.

    `max_window_layers`, which configurations carry from Qwen3, is read by no one.
    """
    own = ("attention_bias", "use_sliding_window", "sliding_window", "max_window_layers")
    check_attributes(config, "Qwen3MoeForCausalLM", also_read=(*own, *QWEN_EXPERT_KEYS, *ROUTER_TRAINING))
    sizes = read_sizes(config)
    rope = read_rope(config, sizes.head_dim)
    activation = read_activation(config)
    bias = read_switch(config, "attention_bias", False)
    windowed = read_switch(config, "use_sliding_window", False) and config.get("sliding_window") is not None
    window = read_int(config, "sliding_window") if windowed else None
    experts = read_qwen_experts(config, sizes.layers)

    def block(index: int) -> LayerPlan:
        name = f"model.layers.{index}"
        build = experts.plan if experts.sparse[index] else gated_mlp
        mlp: MlpPlan | MoePlan = build(f"{name}.mlp", sizes, activation)
        return pre_norm_block(
            index,
            sizes,
            attention(
                f"{name}.self_attn", sizes, rope, qkv_bias=bias, o_bias=bias, qk_norm=True, window=window
            ),
            mlp,
        )

    return decoder(config, sizes, map(block, range(sizes.layers)))
