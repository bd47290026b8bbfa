"""Mistral 7B (Jiang et al. 2023): Llama without biases, with a sliding window on every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gristmill.runtime.architectures.attributes import check_attributes
from gristmill.runtime.architectures.config import read_int
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

__all__ = ["plan_mistral"]

_DEFAULT_WINDOW = 4096


def plan_mistral(config: Mapping[str, Any]) -> ModelPlan:
    """The plan of a `MistralForCausalLM`."""
    check_attributes(config, "MistralForCausalLM", also_read=("sliding_window",))
    sizes = read_sizes(config)
    rope = read_rope(config, sizes.head_dim)
    activation = read_activation(config)
    # Later versions say null and mean it; a configuration without the key has the paper's window.
    unlimited = config.get("sliding_window", _DEFAULT_WINDOW) is None
    window = None if unlimited else read_int(config, "sliding_window", _DEFAULT_WINDOW)

    def block(index: int) -> LayerPlan:
        name = f"model.layers.{index}"
        return pre_norm_block(
            index,
            sizes,
            attention(f"{name}.self_attn", sizes, rope, qkv_bias=False, o_bias=False, window=window),
            gated_mlp(f"{name}.mlp", sizes, activation),
        )

    return decoder(config, sizes, map(block, range(sizes.layers)))
