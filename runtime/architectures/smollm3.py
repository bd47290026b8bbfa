"""SmolLM3 (Bakouch et al. 2025): Llama whose every fourth layer has no rotary embedding (NoPE)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gristmill.runtime.architectures.attributes import check_attributes
from gristmill.runtime.architectures.config import describe, read_int, read_switch
from gristmill.runtime.architectures.decoder import (
    Sizes,
    attention,
    decoder,
    gated_mlp,
    pre_norm_block,
    read_activation,
    read_sizes,
    read_windows,
)
from gristmill.runtime.architectures.rope import read_rope
from gristmill.runtime.errors import ModelError
from gristmill.runtime.model_plan import LayerPlan, ModelPlan

__all__ = ["plan_smollm3"]

_DEFAULT_THETA = 2_000_000.0
_DEFAULT_INTERVAL = 4
_ALSO_READ = (
    "attention_bias",
    "layer_types",
    "max_window_layers",  # written by transformers 4, which did not use it
    "mlp_bias",
    "no_rope_layer_interval",
    "no_rope_layers",
    "sliding_window",
    "use_sliding_window",
)


def plan_smollm3(config: Mapping[str, Any]) -> ModelPlan:
    """The plan of a `SmolLM3ForCausalLM`."""
    check_attributes(config, "SmolLM3ForCausalLM", also_read=_ALSO_READ)
    sizes = read_sizes(config)
    rope = read_rope(config, sizes.head_dim, _DEFAULT_THETA)
    activation = read_activation(config)
    attention_bias = read_switch(config, "attention_bias", False)
    mlp_bias = read_switch(config, "mlp_bias", False)
    rotates = _rotating_layers(config, sizes)
    windows = read_windows(config, sizes, [not rotating for rotating in rotates])

    def block(index: int) -> LayerPlan:
        name = f"model.layers.{index}"
        return pre_norm_block(
            index,
            sizes,
            attention(
                f"{name}.self_attn",
                sizes,
                rope if rotates[index] else None,
                qkv_bias=attention_bias,
                o_bias=attention_bias,
                window=windows[index],
            ),
            gated_mlp(f"{name}.mlp", sizes, activation, bias=mlp_bias),
        )

    return decoder(config, sizes, map(block, range(sizes.layers)), tied_default=True)


def _rotating_layers(config: Mapping[str, Any], sizes: Sizes) -> list[bool]:
    """Which layers rotate: `no_rope_layers` says 1 for those that do, despite its name."""
    listed = config.get("no_rope_layers")
    if listed is None:
        interval = read_int(config, "no_rope_layer_interval", _DEFAULT_INTERVAL)
        return [(index + 1) % interval != 0 for index in range(sizes.layers)]
    if not isinstance(listed, list) or len(listed) != sizes.layers or any(x not in (0, 1) for x in listed):
        raise ModelError(
            "config.json: no_rope_layers",
            found=describe(listed),
            expected=f"a 0 or 1 for each of {sizes.layers} layers",
        )
    return [bool(rotating) for rotating in listed]
