"""Mixtral (Jiang et al. 2024): Mistral with experts in place of each MLP, two of eight for each token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gristmill.runtime.architectures.attributes import check_attributes
from gristmill.runtime.architectures.config import read_int
from gristmill.runtime.architectures.decoder import (
    attention,
    decoder,
    pre_norm_block,
    read_activation,
    read_sizes,
)
from gristmill.runtime.architectures.experts import ROUTER_TRAINING, read_experts
from gristmill.runtime.architectures.rope import read_rope
from gristmill.runtime.model_plan import LayerPlan, LinearPlan, MlpPlan, ModelPlan, MoePlan

__all__ = ["plan_mixtral"]

_DEFAULT_THETA = 1e6


def plan_mixtral(config: Mapping[str, Any]) -> ModelPlan:
    """The plan of a `MixtralForCausalLM`, its experts named as on disk: w1 is gate, w2 down, w3 up."""
    own = ("sliding_window", "num_local_experts", "num_experts_per_tok", "router_jitter_noise")
    check_attributes(config, "MixtralForCausalLM", also_read=(*own, *ROUTER_TRAINING))
    sizes = read_sizes(config)
    rope = read_rope(config, sizes.head_dim, _DEFAULT_THETA)
    activation = read_activation(config)
    experts, top_k = read_experts(config, "num_local_experts", experts=8, top_k=2)
    window = None if config.get("sliding_window") is None else read_int(config, "sliding_window")

    def expert(name: str) -> MlpPlan:
        return MlpPlan(
            gate=LinearPlan(f"{name}.w1", sizes.hidden, sizes.intermediate),
            up=LinearPlan(f"{name}.w3", sizes.hidden, sizes.intermediate),
            down=LinearPlan(f"{name}.w2", sizes.intermediate, sizes.hidden),
            activation=activation,
        )

    def block(index: int) -> LayerPlan:
        name = f"model.layers.{index}"
        mixture = f"{name}.block_sparse_moe"
        return pre_norm_block(
            index,
            sizes,
            attention(f"{name}.self_attn", sizes, rope, qkv_bias=False, o_bias=False, window=window),
            MoePlan(
                router=LinearPlan(f"{mixture}.gate", sizes.hidden, experts),
                experts=tuple(expert(f"{mixture}.experts.{number}") for number in range(experts)),
                top_k=top_k,
                normalize_top_k=True,
            ),
        )

    return decoder(config, sizes, map(block, range(sizes.layers)))
