"""Qwen3 (Yang et al. 2025): Qwen2 without its biases, with an RMS norm on every head of q and k."""

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
    read_windows,
)
from gristmill.runtime.architectures.rope import read_rope
from gristmill.runtime.model_plan import LayerPlan, ModelPlan

__all__ = ["plan_qwen3"]

_DEFAULT_HEAD_DIM = 128
_DEFAULT_WINDOW_START = 28


def plan_qwen3(config: Mapping[str, Any]) -> ModelPlan:
    """The plan of a `Qwen3ForCausalLM`."""
    windowed = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")
    check_attributes(config, "Qwen3ForCausalLM", also_read=("attention_bias", *windowed))
    sizes = read_sizes(config, head_dim=_DEFAULT_HEAD_DIM)
    rope = read_rope(config, sizes.head_dim)
    activation = read_activation(config)
    bias = read_switch(config, "attention_bias", False)
    first = read_int(config, "max_window_layers", _DEFAULT_WINDOW_START, minimum=0)
    windows = read_windows(config, sizes, [index >= first for index in range(sizes.layers)])

    def block(index: int) -> LayerPlan:
        name = f"model.layers.{index}"
        return pre_norm_block(
            index,
            sizes,
            attention(
                f"{name}.self_attn",
                sizes,
                rope,
                qkv_bias=bias,
                o_bias=bias,
                qk_norm=True,
                window=windows[index],
            ),
            gated_mlp(f"{name}.mlp", sizes, activation),
        )

    return decoder(config, sizes, map(block, range(sizes.layers)))
