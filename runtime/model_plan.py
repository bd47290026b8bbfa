"""The model plan: an explicit, frozen description of a model that every executor interprets.

An architecture file turns a Hugging Face `config.json` into a `ModelPlan`.
Nothing is implied: each layer lists its attention, norms, MLP and the
checkpoint name of every tensor it reads. What a plan can't express is refused
by the architecture file with the attribute's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from gristmill.runtime.strict_json import from_json

__all__ = [
    "AttentionPlan",
    "LayerPlan",
    "LinearPlan",
    "MlpPlan",
    "ModelPlan",
    "NormPlan",
    "RopePlan",
    "ScalingGroup",
]


@dataclass(frozen=True, slots=True)
class LinearPlan:
    """`y = x W^T + b`; tensors `{name}.weight` [out, in] and, with `bias`, `{name}.bias` [out]."""

    name: str
    in_features: int
    out_features: int
    bias: bool = False

    @property
    def weight(self) -> str:
        """Checkpoint name of the weight."""
        return f"{self.name}.weight"


@dataclass(frozen=True, slots=True)
class NormPlan:
    """RMS norm over the last axis with a learned scale `{name}.weight`."""

    name: str
    size: int
    eps: float


@dataclass(frozen=True, slots=True)
class RopePlan:
    """Rotary position embedding in the half-split (NeoX) layout.

    `inv_freq` has `rotary_dim / 2` entries, with any scaling of the
    configuration (linear, llama3, yarn) already applied; cosines and sines are
    multiplied by `attention_factor`.
    """

    rotary_dim: int
    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Grouped-query attention. `scale` multiplies q k^T; norms on q and k act per head."""

    q: LinearPlan
    k: LinearPlan
    v: LinearPlan
    o: LinearPlan
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: RopePlan | None
    q_norm: NormPlan | None = None
    k_norm: NormPlan | None = None
    sliding_window: int | None = None
    logit_softcap: float | None = None


@dataclass(frozen=True, slots=True)
class MlpPlan:
    """Gated MLP: `down(activation(gate(x)) * up(x))`."""

    gate: LinearPlan
    up: LinearPlan
    down: LinearPlan
    activation: Literal["silu", "gelu", "gelu_tanh"] = "silu"


@dataclass(frozen=True, slots=True)
class ScalingGroup:
    """Linears that read one tensor, and the operation whose output channels can absorb a scale.

    Dividing the output of `source` (a norm, or a linear's rows) by s and
    multiplying the columns of `linears` by s leaves the model unchanged.
    `repeats` says how many consecutive blocks of `block` input channels share
    one source channel block (grouped-query attention: v feeds o).
    """

    source: str
    source_kind: Literal["norm", "linear"]
    linears: tuple[LinearPlan, ...]
    repeats: int = 1
    block: int = 0


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """One pre-norm decoder block: attention and MLP, each with a residual connection."""

    index: int
    input_norm: NormPlan
    attention: AttentionPlan
    mlp_norm: NormPlan
    mlp: MlpPlan

    @property
    def linears(self) -> tuple[LinearPlan, ...]:
        """Every quantizable linear, in execution order."""
        a, m = self.attention, self.mlp
        return (a.q, a.k, a.v, a.o, m.gate, m.up, m.down)

    @property
    def input_groups(self) -> tuple[tuple[LinearPlan, ...], ...]:
        """Linears grouped by the tensor they read, in execution order."""
        a, m = self.attention, self.mlp
        return ((a.q, a.k, a.v), (a.o,), (m.gate, m.up), (m.down,))

    @property
    def scaling_groups(self) -> tuple[ScalingGroup, ...]:
        """Where an input scale can be folded away, one entry for each of `input_groups`."""
        a, m = self.attention, self.mlp
        return (
            ScalingGroup(self.input_norm.name, "norm", (a.q, a.k, a.v)),
            ScalingGroup(a.v.name, "linear", (a.o,), repeats=a.num_heads // a.num_kv_heads, block=a.head_dim),
            ScalingGroup(self.mlp_norm.name, "norm", (m.gate, m.up)),
            ScalingGroup(m.up.name, "linear", (m.down,)),
        )

    def tensor_names(self) -> Iterator[str]:
        """Checkpoint names of all tensors that this block reads."""
        for linear in self.linears:
            yield linear.weight
            if linear.bias:
                yield f"{linear.name}.bias"
        norms = (self.input_norm, self.mlp_norm, self.attention.q_norm, self.attention.k_norm)
        yield from (f"{norm.name}.weight" for norm in norms if norm is not None)


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """A decoder-only language model as a list of layers.

    `head` is None when the output projection is the embedding itself (tied).
    `dtype` is the checkpoint's own: `bfloat16`, `float16` or `float32`.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    max_positions: int
    dtype: str
    embedding: str
    layers: tuple[LayerPlan, ...]
    final_norm: NormPlan
    head: LinearPlan | None

    @property
    def head_weight(self) -> str:
        """Checkpoint name of the output projection's weight [vocab, hidden]."""
        return f"{self.embedding}.weight" if self.head is None else self.head.weight

    @property
    def linears(self) -> tuple[LinearPlan, ...]:
        """Every linear of every block, in execution order (not the head)."""
        return tuple(linear for layer in self.layers for linear in layer.linears)

    @property
    def kv_elements_per_token(self) -> int:
        """Keys and values stored for one token over all layers."""
        return sum(2 * layer.attention.num_kv_heads * layer.attention.head_dim for layer in self.layers)

    def tensor_names(self) -> Iterator[str]:
        """Checkpoint names of all tensors that the model reads."""
        yield f"{self.embedding}.weight"
        for layer in self.layers:
            yield from layer.tensor_names()
        yield f"{self.final_norm.name}.weight"
        if self.head is not None:
            yield self.head.weight

    def num_parameters(self) -> int:
        """Weights of the whole model; a tied head counts once."""
        total = self.vocab_size * self.hidden_size + self.final_norm.size
        for layer in self.layers:
            total += sum(linear.in_features * linear.out_features for linear in layer.linears)
            total += sum(linear.out_features for linear in layer.linears if linear.bias)
            norms = (layer.input_norm, layer.mlp_norm, layer.attention.q_norm, layer.attention.k_norm)
            total += sum(norm.size for norm in norms if norm is not None)
        if self.head is not None:
            total += self.head.in_features * self.head.out_features
        return total

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-ready values, for an engine's `plan.json`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> ModelPlan:
        """Inverse of `to_dict`, before or after JSON. Raises InputError naming a field that is wrong."""
        return from_json(cls, data, "model")
