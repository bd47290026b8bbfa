"""The model plan: an explicit, frozen description of a model that every executor interprets.

An architecture file turns a Hugging Face `config.json` into a `ModelPlan`.
Nothing is implied: each layer lists its attention, norms, MLP and the
checkpoint name of every tensor it reads. What a plan can't express is refused
by the architecture file with the attribute's name.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from gristmill.runtime.strict_json import from_json

__all__ = [
    "AttentionPlan",
    "LayerPlan",
    "LinearPlan",
    "MlpPlan",
    "ModelPlan",
    "MoePlan",
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
class ScalingGroup:
    """Linears that read one tensor, and the operation whose output channels can absorb a scale.

    Dividing the output of `source` (a norm, or a linear's rows) by s and
    multiplying the columns of `linears` by s leaves the model unchanged.
    `repeats` says how many consecutive blocks of `block` input channels share
    one source channel block (grouped-query attention: v feeds o). `routers`
    read the tensor too and are never quantized.
    """

    source: str
    source_kind: Literal["norm", "linear"]
    linears: tuple[LinearPlan, ...]
    repeats: int = 1
    block: int = 0
    routers: tuple[LinearPlan, ...] = ()


@dataclass(frozen=True, slots=True)
class MlpPlan:
    """Gated MLP: `down(activation(gate(x)) * up(x))`."""

    gate: LinearPlan
    up: LinearPlan
    down: LinearPlan
    activation: Literal["silu", "gelu", "gelu_tanh"] = "silu"

    @property
    def linears(self) -> tuple[LinearPlan, ...]:
        """Every quantizable linear, in execution order."""
        return (self.gate, self.up, self.down)

    @property
    def input_groups(self) -> tuple[tuple[LinearPlan, ...], ...]:
        """Linears grouped by the tensor they read, in execution order."""
        return ((self.gate, self.up), (self.down,))

    @property
    def routers(self) -> tuple[LinearPlan, ...]:
        """A dense MLP has none."""
        return ()

    @property
    def width(self) -> int:
        """Channels between gate and down that one token takes."""
        return self.gate.out_features

    @property
    def passes(self) -> int:
        """How many MLPs one token goes through."""
        return 1

    def scaling_groups(self, norm: NormPlan) -> tuple[ScalingGroup, ...]:
        """Where an input scale can be folded away, behind `norm`."""
        return (
            ScalingGroup(norm.name, "norm", (self.gate, self.up)),
            ScalingGroup(self.up.name, "linear", (self.down,)),
        )


@dataclass(frozen=True, slots=True)
class MoePlan:
    """Mixture of experts (Shazeer et al. 2017): each token goes through the `top_k` likeliest of `experts`.

    Their outputs are summed with the weights softmax(router(x)), which are
    divided by the sum of the chosen ones with `normalize_top_k`. The `shared`
    expert sees every token; its output is multiplied by
    sigmoid(shared_gate(x)) where there is such a gate, and added. Router and
    shared gate are never quantized.
    """

    router: LinearPlan
    experts: tuple[MlpPlan, ...]
    top_k: int
    normalize_top_k: bool
    shared: MlpPlan | None = None
    shared_gate: LinearPlan | None = None

    @property
    def mlps(self) -> tuple[MlpPlan, ...]:
        """The experts, the shared one last."""
        return self.experts if self.shared is None else (*self.experts, self.shared)

    @property
    def linears(self) -> tuple[LinearPlan, ...]:
        """Every quantizable linear, expert by expert."""
        return tuple(linear for mlp in self.mlps for linear in mlp.linears)

    @property
    def input_groups(self) -> tuple[tuple[LinearPlan, ...], ...]:
        """Linears grouped by the tensor they read: an expert's are the rows of its own tokens."""
        return tuple(group for mlp in self.mlps for group in mlp.input_groups)

    @property
    def readers(self) -> tuple[LinearPlan, ...]:
        """All quantizable linears that read the norm, of whichever tokens."""
        return tuple(linear for mlp in self.mlps for linear in (mlp.gate, mlp.up))

    @property
    def routers(self) -> tuple[LinearPlan, ...]:
        """The linears that decide how much each expert counts."""
        return (self.router,) if self.shared_gate is None else (self.router, self.shared_gate)

    @property
    def width(self) -> int:
        """Channels between gate and down that one token takes, over all its experts."""
        shared = 0 if self.shared is None else self.shared.width
        return shared + self.top_k * max(expert.width for expert in self.experts)

    @property
    def passes(self) -> int:
        """How many MLPs one token goes through, the shared expert included."""
        return self.top_k + (self.shared is not None)

    def scaling_groups(self, norm: NormPlan) -> tuple[ScalingGroup, ...]:
        """Where an input scale can be folded away: one for all that read `norm`, one for each expert."""
        return (
            ScalingGroup(norm.name, "norm", self.readers, routers=self.routers),
            *(ScalingGroup(mlp.up.name, "linear", (mlp.down,)) for mlp in self.mlps),
        )


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """One pre-norm decoder block: attention and MLP, each with a residual connection."""

    index: int
    input_norm: NormPlan
    attention: AttentionPlan
    mlp_norm: NormPlan
    mlp: MlpPlan | MoePlan

    @property
    def linears(self) -> tuple[LinearPlan, ...]:
        """Every quantizable linear, in execution order."""
        a = self.attention
        return (a.q, a.k, a.v, a.o, *self.mlp.linears)

    @property
    def norms(self) -> tuple[NormPlan, ...]:
        """The norms that there are."""
        norms = (self.input_norm, self.mlp_norm, self.attention.q_norm, self.attention.k_norm)
        return tuple(norm for norm in norms if norm is not None)

    @property
    def input_groups(self) -> tuple[tuple[LinearPlan, ...], ...]:
        """Quantizable linears grouped by the tensor they read, in execution order."""
        a = self.attention
        return ((a.q, a.k, a.v), (a.o,), *self.mlp.input_groups)

    @property
    def scaling_groups(self) -> tuple[ScalingGroup, ...]:
        """Where an input scale can be folded away; in a dense block one for each of `input_groups`."""
        a = self.attention
        return (
            ScalingGroup(self.input_norm.name, "norm", (a.q, a.k, a.v)),
            ScalingGroup(a.v.name, "linear", (a.o,), repeats=a.num_heads // a.num_kv_heads, block=a.head_dim),
            *self.mlp.scaling_groups(self.mlp_norm),
        )

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Unpacked shapes of all tensors that this block reads, by checkpoint name."""
        shapes: dict[str, tuple[int, ...]] = {}
        for linear in (*self.linears, *self.mlp.routers):
            shapes[linear.weight] = (linear.out_features, linear.in_features)
            if linear.bias:
                shapes[f"{linear.name}.bias"] = (linear.out_features,)
        return shapes | {f"{norm.name}.weight": (norm.size,) for norm in self.norms}


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
    def has_experts(self) -> bool:
        """Whether a layer sends tokens to some of its experts."""
        return any(isinstance(layer.mlp, MoePlan) for layer in self.layers)

    @property
    def ropes(self) -> tuple[RopePlan, ...]:
        """The different rotary embeddings of the layers, in order of first use."""
        return tuple(dict.fromkeys(layer.attention.rope for layer in self.layers if layer.attention.rope))

    @property
    def kv_elements_per_token(self) -> int:
        """Keys and values stored for one token over all layers."""
        return sum(2 * layer.attention.num_kv_heads * layer.attention.head_dim for layer in self.layers)

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Unpacked shapes of all tensors that the model reads, by checkpoint name; a tied head has none."""
        shapes: dict[str, tuple[int, ...]] = {f"{self.embedding}.weight": (self.vocab_size, self.hidden_size)}
        for layer in self.layers:
            shapes |= layer.tensor_shapes()
        shapes[f"{self.final_norm.name}.weight"] = (self.final_norm.size,)
        if self.head is not None:
            shapes[self.head.weight] = (self.head.out_features, self.head.in_features)
        return shapes

    def num_parameters(self) -> int:
        """Weights of the whole model; a tied head counts once."""
        return sum(map(math.prod, self.tensor_shapes().values()))

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-ready values, for an engine's `plan.json`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> ModelPlan:
        """Inverse of `to_dict`, before or after JSON. Raises InputError naming a field that is wrong."""
        return from_json(cls, data, "model")
