"""What the decoder-only families share: sizes, tensor names, grouped-query attention, a gated MLP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gristmill.runtime.architectures.config import (
    describe,
    read_choice,
    read_float,
    read_int,
    read_switch,
)
from gristmill.runtime.architectures.rope import read_max_positions
from gristmill.runtime.errors import ModelError
from gristmill.runtime.model_plan import (
    AttentionPlan,
    LayerPlan,
    LinearPlan,
    MlpPlan,
    ModelPlan,
    MoePlan,
    NormPlan,
    RopePlan,
)

__all__ = [
    "Activation",
    "Sizes",
    "attention",
    "decoder",
    "gated_mlp",
    "pre_norm_block",
    "read_activation",
    "read_sizes",
    "read_windows",
]

Activation = Literal["silu", "gelu", "gelu_tanh"]
_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_DTYPES = ("bfloat16", "float16", "float32")
_MOST_LAYERS = 10_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """The dimensions of a decoder, checked against each other."""

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float


def read_sizes(
    config: Mapping[str, Any], *, head_dim: int | None = None, kv_heads_default: bool = False
) -> Sizes:
    """The sizes of a configuration; `head_dim` is the family's default where it has one.

    `kv_heads_default` says that a missing `num_key_value_heads` means one for
    each head. Raises ModelError, naming the key, for sizes that are missing or
    do not fit each other.
    """
    hidden, heads = read_int(config, "hidden_size"), read_int(config, "num_attention_heads")
    if config.get("head_dim") is None and head_dim is None:
        if hidden % heads:
            raise ModelError(
                "config.json: num_attention_heads",
                found=heads,
                expected=f"a divisor of hidden_size {hidden}, or a head_dim",
            )
        head_dim = hidden // heads
    kv_heads = read_int(config, "num_key_value_heads", heads if kv_heads_default else None)
    if heads % kv_heads:
        raise ModelError(
            "config.json: num_key_value_heads",
            found=kv_heads,
            expected=f"a divisor of num_attention_heads {heads}",
        )
    return Sizes(
        vocab=read_int(config, "vocab_size"),
        hidden=hidden,
        intermediate=read_int(config, "intermediate_size"),
        layers=read_int(config, "num_hidden_layers", maximum=_MOST_LAYERS),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=read_int(config, "head_dim", head_dim),
        eps=read_float(config, "rms_norm_eps"),
    )


def read_activation(config: Mapping[str, Any]) -> Activation:
    """The MLP's activation, `hidden_act`."""
    return _ACTIVATIONS[read_choice(config, "hidden_act", _ACTIVATIONS, "silu")]


def read_windows(config: Mapping[str, Any], sizes: Sizes, slides: Iterable[bool]) -> tuple[int | None, ...]:
    """The sliding window of each layer: that of `layer_types`, or where it is missing, of `slides`.

    There is none without `use_sliding_window`.
    """
    if not read_switch(config, "use_sliding_window", False) or config.get("sliding_window") is None:
        window = None
    else:
        window = read_int(config, "sliding_window")
    types = config.get("layer_types")
    if types is None:
        return tuple(window if slide else None for slide in slides)
    if not isinstance(types, list) or len(types) != sizes.layers:
        raise ModelError(
            "config.json: layer_types",
            found=describe(types),
            expected=f"one entry for each of {sizes.layers} layers",
        )
    known = ("full_attention", "sliding_attention")
    kinds = [read_choice({"layer_types": kind}, "layer_types", known) for kind in types]
    if "sliding_attention" in kinds and window is None:
        raise ModelError(
            "config.json: layer_types holds sliding_attention, but sliding_window is not set and used"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def attention(
    name: str,
    sizes: Sizes,
    rope: RopePlan | None,
    *,
    qkv_bias: bool,
    o_bias: bool,
    qk_norm: bool = False,
    window: int | None = None,
) -> AttentionPlan:
    """Grouped-query attention (Ainslie et al. 2023) with logits scaled by `1/sqrt(head_dim)`."""
    hidden, q_size, kv_size = sizes.hidden, sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    return AttentionPlan(
        q=LinearPlan(f"{name}.q_proj", hidden, q_size, qkv_bias),
        k=LinearPlan(f"{name}.k_proj", hidden, kv_size, qkv_bias),
        v=LinearPlan(f"{name}.v_proj", hidden, kv_size, qkv_bias),
        o=LinearPlan(f"{name}.o_proj", q_size, hidden, o_bias),
        num_heads=sizes.heads,
        num_kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        scale=sizes.head_dim**-0.5,
        rope=rope,
        q_norm=NormPlan(f"{name}.q_norm", sizes.head_dim, sizes.eps) if qk_norm else None,
        k_norm=NormPlan(f"{name}.k_norm", sizes.head_dim, sizes.eps) if qk_norm else None,
        sliding_window=window,
    )


def gated_mlp(name: str, sizes: Sizes, activation: Activation, *, bias: bool = False) -> MlpPlan:
    """A gated MLP (Shazeer 2020, eq. 6)."""
    return MlpPlan(
        gate=LinearPlan(f"{name}.gate_proj", sizes.hidden, sizes.intermediate, bias),
        up=LinearPlan(f"{name}.up_proj", sizes.hidden, sizes.intermediate, bias),
        down=LinearPlan(f"{name}.down_proj", sizes.intermediate, sizes.hidden, bias),
        activation=activation,
    )


def pre_norm_block(index: int, sizes: Sizes, attention: AttentionPlan, mlp: MlpPlan | MoePlan) -> LayerPlan:
    """Attention and MLP or experts, each behind an RMS norm."""
    name = f"model.layers.{index}"
    return LayerPlan(
        index=index,
        input_norm=NormPlan(f"{name}.input_layernorm", sizes.hidden, sizes.eps),
        attention=attention,
        mlp_norm=NormPlan(f"{name}.post_attention_layernorm", sizes.hidden, sizes.eps),
        mlp=mlp,
    )


def decoder(
    config: Mapping[str, Any], sizes: Sizes, layers: Iterable[LayerPlan], *, tied_default: bool = False
) -> ModelPlan:
    """Embedding, blocks, a final norm and the head, which is the embedding itself where it is tied."""
    tied = read_switch(config, "tie_word_embeddings", tied_default)
    return ModelPlan(
        architecture=str(config["model_type"]),
        vocab_size=sizes.vocab,
        hidden_size=sizes.hidden,
        max_positions=read_max_positions(config),
        dtype=_read_dtype(config),
        embedding="model.embed_tokens",
        layers=tuple(layers),
        final_norm=NormPlan("model.norm", sizes.hidden, sizes.eps),
        head=None if tied else LinearPlan("lm_head", sizes.hidden, sizes.vocab),
    )


def _read_dtype(config: Mapping[str, Any]) -> str:
    """`dtype`, `torch_dtype` in transformers 4, float32 where there is neither."""
    found = {
        read_choice(config, key, _DTYPES, "float32") for key in ("dtype", "torch_dtype") if config.get(key)
    }
    if len(found) == 2:
        raise ModelError("config.json: dtype and torch_dtype contradict each other", found=sorted(found))
    return found.pop() if found else "float32"
