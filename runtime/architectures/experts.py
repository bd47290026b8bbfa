"""What the mixture-of-experts families share: which layers have experts, how many, how many see a token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gristmill.runtime.architectures.config import describe, read_int, read_switch
from gristmill.runtime.architectures.decoder import Activation, Sizes, gated_mlp
from gristmill.runtime.errors import ModelError
from gristmill.runtime.model_plan import LinearPlan, MlpPlan, MoePlan

__all__ = ["QWEN_EXPERT_KEYS", "ROUTER_TRAINING", "QwenExperts", "read_experts", "read_qwen_experts"]

ROUTER_TRAINING = ("output_router_logits", "router_aux_loss_coef", "router_jitter_noise")
"""Attributes that training alone reads: the balancing loss, and noise on the router's input."""

QWEN_EXPERT_KEYS = (
    "num_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "norm_topk_prob",
    "moe_intermediate_size",
    "decoder_sparse_step",
    "mlp_only_layers",
)

_MOST_EXPERTS = 10_000


def read_experts(
    config: Mapping[str, Any], key: str, *, experts: int | None = None, top_k: int | None = None
) -> tuple[int, int]:
    """How many experts there are, at `key`, and how many of them see a token.

    `experts` and `top_k` are the family's defaults where it has them.
    """
    count = read_int(config, key, experts, maximum=_MOST_EXPERTS)
    chosen = read_int(config, "num_experts_per_tok", top_k)
    if chosen > count:
        raise ModelError(
            "config.json: num_experts_per_tok", found=chosen, expected=f"at most {key}, which is {count}"
        )
    return count, chosen


@dataclass(frozen=True, slots=True)
class QwenExperts:
    """The experts of Qwen's mixtures; `sparse` tells which layers have them, the others are dense."""

    count: int
    top_k: int
    normalize_top_k: bool
    intermediate: int
    sparse: tuple[bool, ...]

    def plan(
        self,
        name: str,
        sizes: Sizes,
        activation: Activation,
        shared: MlpPlan | None = None,
        shared_gate: LinearPlan | None = None,
    ) -> MoePlan:
        """The mixture called `name`, beside a shared expert where there is one."""
        narrow = replace(sizes, intermediate=self.intermediate)
        return MoePlan(
            router=LinearPlan(f"{name}.gate", sizes.hidden, self.count),
            experts=tuple(
                gated_mlp(f"{name}.experts.{number}", narrow, activation) for number in range(self.count)
            ),
            top_k=self.top_k,
            normalize_top_k=self.normalize_top_k,
            shared=shared,
            shared_gate=shared_gate,
        )


def read_qwen_experts(config: Mapping[str, Any], layers: int) -> QwenExperts:
    """The experts of a Qwen configuration, whose number transformers 5 calls `num_local_experts`.

    Every `decoder_sparse_step`-th layer has them, less those of `mlp_only_layers`.
    """
    old = config.get("num_experts") is not None
    count, top_k = read_experts(config, "num_experts" if old else "num_local_experts")
    step = read_int(config, "decoder_sparse_step", 1)
    dense = config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(index) is int and 0 <= index < layers for index in dense):
        raise ModelError(
            "config.json: mlp_only_layers", found=describe(dense), expected=f"layers from 0 to {layers - 1}"
        )
    return QwenExperts(
        count=count,
        top_k=top_k,
        normalize_top_k=read_switch(config, "norm_topk_prob", False),
        intermediate=read_int(config, "moe_intermediate_size"),
        sparse=tuple((index + 1) % step == 0 and index not in dense for index in range(layers)),
    )
