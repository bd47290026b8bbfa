"""Qwen2-MoE (Yang et al. 2024, section 2.2.2): Qwen2 with many small experts, and a gated, shared one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
    read_windows,
)
from gristmill.runtime.architectures.experts import QWEN_EXPERT_KEYS, ROUTER_TRAINING, read_qwen_experts
from gristmill.runtime.architectures.rope import read_rope
from gristmill.runtime.model_plan import LayerPlan, LinearPlan, MlpPlan, ModelPlan, MoePlan

__all__ = ["plan_qwen2_moe"]

_DEFAULT_WINDOW_END = 28


def plan_qwen2_moe(config: Mapping[str, Any]) -> ModelPlan:
    """The plan of a `Qwen2MoeForCausalLM`; if windows are used, the even layers of the first have one."""
    windowed = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")
    own = ("qkv_bias", "shared_expert_intermediate_size", *QWEN_EXPERT_KEYS, *ROUTER_TRAINING)
    check_attributes(config, "Qwen2MoeForCausalLM", also_read=(*windowed, *own))
    sizes = read_sizes(config)
    rope = read_rope(config, sizes.head_dim)
    activation = read_activation(config)
    bias = read_switch(config, "qkv_bias", True)
    end = read_int(config, "max_window_layers", _DEFAULT_WINDOW_END, minimum=0)
    windows = read_windows(config, sizes, [index % 2 == 0 and index < end for index in range(sizes.layers)])
    experts = read_qwen_experts(config, sizes.layers)
    shared_sizes = replace(sizes, intermediate=read_int(config, "shared_expert_intermediate_size"))

    def mixture(name: str) -> MoePlan:
        shared = gated_mlp(f"{name}.shared_expert", shared_sizes, activation)
        shared_gate = LinearPlan(f"{name}.shared_expert_gate", sizes.hidden, 1)
        return experts.plan(name, sizes, activation, shared, shared_gate)

    def block(index: int) -> LayerPlan:
        name = f"model.layers.{index}"
        mlp: MlpPlan | MoePlan = (
            mixture(f"{name}.mlp") if experts.sparse[index] else gated_mlp(f"{name}.mlp", sizes, activation)
        )
        return pre_norm_block(
            index,
            sizes,
            attention(f"{name}.self_attn", sizes, rope, qkv_bias=bias, o_bias=False, window=windows[index]),
            mlp,
        )

    return decoder(config, sizes, map(block, range(sizes.layers)))
