"""A model plan that was read from a file: sizes that fit together, before anything is built on them."""

from __future__ import annotations

from collections.abc import Iterator

from gristmill.runtime.errors import InputError
from gristmill.runtime.model_plan import (
    AttentionPlan,
    LayerPlan,
    LinearPlan,
    MlpPlan,
    ModelPlan,
    MoePlan,
    NormPlan,
)

__all__ = ["check_plan"]

_MOST = 2**31 - 1  # the kernels count in 32 bits
_Claim = tuple[str, object, object]  # a field, what it is, what it must be


def check_plan(plan: ModelPlan) -> None:
    """Raise InputError for a plan whose parts do not fit together, naming the field."""
    _require(_model_claims(plan))
    for index, layer in enumerate(plan.layers):
        where = f"layers[{index}]"
        _require([(f"{where}.index", layer.index, index)])
        _positive(_layer_sizes(where, layer))
        _positive(_layer_numbers(where, layer), "a positive number")
        _require(_layer_claims(where, layer, plan.hidden_size))


def _require(claims: list[_Claim]) -> None:
    for name, found, expected in claims:
        if found != expected:
            raise InputError(f"model.{name}", found=found, expected=expected)


def _positive(numbers: Iterator[tuple[str, float | None]], expected: str = f"1 to {_MOST}") -> None:
    for name, number in numbers:
        if number is not None and not 0 < number <= _MOST:
            raise InputError(f"model.{name}", found=number, expected=expected)


def _model_claims(plan: ModelPlan) -> list[_Claim]:
    sizes = {"vocab_size": plan.vocab_size, "hidden_size": plan.hidden_size, "layers": len(plan.layers)}
    _positive(iter({**sizes, "max_positions": plan.max_positions}.items()))
    _positive(iter([("final_norm.eps", plan.final_norm.eps)]), "a positive number")
    if plan.dtype not in ("bfloat16", "float16", "float32"):
        raise InputError("model.dtype", found=plan.dtype, expected="bfloat16, float16 or float32")
    claims = [_norm("final_norm", plan.final_norm, plan.hidden_size)]
    if plan.head is not None:
        claims += _linear("head", plan.head, plan.hidden_size, plan.vocab_size)
    return claims


def _layer_sizes(where: str, layer: LayerPlan) -> Iterator[tuple[str, float | None]]:
    attention = layer.attention
    for name in ("num_heads", "num_kv_heads", "head_dim", "sliding_window"):
        yield f"{where}.attention.{name}", getattr(attention, name)
    if attention.rope is not None:
        yield f"{where}.attention.rope.rotary_dim", attention.rope.rotary_dim
    for name, mlp in _mlps(f"{where}.mlp", layer.mlp):
        yield f"{name}.gate.out_features", mlp.gate.out_features


def _layer_numbers(where: str, layer: LayerPlan) -> Iterator[tuple[str, float | None]]:
    attention = layer.attention
    for norm in layer.norms:
        yield f"{where}: eps of {norm.name}", norm.eps
    yield f"{where}.attention.scale", attention.scale
    yield f"{where}.attention.logit_softcap", attention.logit_softcap
    if attention.rope is not None:
        yield f"{where}.attention.rope.attention_factor", attention.rope.attention_factor


def _layer_claims(where: str, layer: LayerPlan, hidden: int) -> list[_Claim]:
    claims = [
        _norm(f"{where}.input_norm", layer.input_norm, hidden),
        _norm(f"{where}.mlp_norm", layer.mlp_norm, hidden),
        *_attention_claims(f"{where}.attention", layer.attention, hidden),
    ]
    for name, mlp in _mlps(f"{where}.mlp", layer.mlp):
        channels = mlp.gate.out_features
        claims += _linear(f"{name}.gate", mlp.gate, hidden, channels)
        claims += _linear(f"{name}.up", mlp.up, hidden, channels)
        claims += _linear(f"{name}.down", mlp.down, channels, hidden)
    if isinstance(layer.mlp, MoePlan):
        claims += _mixture_claims(f"{where}.mlp", layer.mlp, hidden)
    return claims


def _mlps(where: str, mlp: MlpPlan | MoePlan) -> Iterator[tuple[str, MlpPlan]]:
    if isinstance(mlp, MlpPlan):
        yield where, mlp
        return
    for index, expert in enumerate(mlp.experts):
        yield f"{where}.experts[{index}]", expert
    if mlp.shared is not None:
        yield f"{where}.shared", mlp.shared


def _mixture_claims(where: str, mixture: MoePlan, hidden: int) -> list[_Claim]:
    experts = len(mixture.experts)
    if not 1 <= mixture.top_k <= experts:
        expected = f"1 to the {experts} experts"
        raise InputError(f"model.{where}.top_k", found=mixture.top_k, expected=expected)
    claims = _linear(f"{where}.router", mixture.router, hidden, experts)
    claims.append((f"{where}.router.bias", mixture.router.bias, False))
    if mixture.shared_gate is not None:
        claims.append((f"{where}.shared_gate beside a shared expert", mixture.shared is not None, True))
        claims += _linear(f"{where}.shared_gate", mixture.shared_gate, hidden, 1)
        claims.append((f"{where}.shared_gate.bias", mixture.shared_gate.bias, False))
    return claims


def _attention_claims(where: str, attention: AttentionPlan, hidden: int) -> list[_Claim]:
    dim, rope = attention.head_dim, attention.rope
    queries, keys = attention.num_heads * dim, attention.num_kv_heads * dim
    claims = [
        (f"{where}.num_heads % num_kv_heads", attention.num_heads % attention.num_kv_heads, 0),
        *_linear(f"{where}.q", attention.q, hidden, queries),
        *_linear(f"{where}.k", attention.k, hidden, keys),
        *_linear(f"{where}.v", attention.v, hidden, keys),
        *_linear(f"{where}.o", attention.o, queries, hidden),
    ]
    for name, norm in (("q_norm", attention.q_norm), ("k_norm", attention.k_norm)):
        if norm is not None:
            claims.append(_norm(f"{where}.{name}", norm, dim))
    if rope is not None:
        claims.append((f"{where}.rope.rotary_dim", rope.rotary_dim, min(rope.rotary_dim, dim)))
        claims.append((f"{where}.rope: twice its inv_freq", 2 * len(rope.inv_freq), rope.rotary_dim))
    return claims


def _linear(where: str, linear: LinearPlan, columns: int, rows: int) -> list[_Claim]:
    return [
        (f"{where}.in_features", linear.in_features, columns),
        (f"{where}.out_features", linear.out_features, rows),
    ]


def _norm(where: str, norm: NormPlan, size: int) -> _Claim:
    return f"{where}.size", norm.size, size
