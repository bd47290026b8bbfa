"""An engine file in the words of the C++ engine: plain dictionaries of numbers and offsets."""

from __future__ import annotations

from typing import Any

from gristmill.runtime.executors.native.stored import (
    EngineFile,
    StoredBlock,
    StoredLayer,
    StoredMixture,
    StoredMlp,
    StoredTensor,
    StoredWeight,
)
from gristmill.runtime.kv_scales import LayerKVScales
from gristmill.runtime.model_plan import AttentionPlan, LayerPlan, MlpPlan, MoePlan, NormPlan, RopePlan

__all__ = ["model_spec"]


def model_spec(engine: EngineFile) -> dict[str, Any]:
    """What `_native.Engine` takes as `model`. Offsets count from the start of the weights file."""
    plan = engine.plan
    return {
        "vocab_size": plan.vocab_size,
        "hidden_size": plan.hidden_size,
        "max_positions": plan.max_positions,
        "embedding": {"dtype": engine.embedding.dtype, "offset": engine.embedding.offset},
        "final_norm": _norm(plan.final_norm, engine.final_norm),
        "head": _weight(engine.head),
        "ropes": [
            {"inv_freq": list(rope.inv_freq), "attention_factor": rope.attention_factor}
            for rope in plan.ropes
        ],
        "layers": [
            {**_layer(layer, stored, plan.ropes), **_kv_scales(engine, layer)}
            for layer, stored in zip(plan.layers, engine.layers, strict=True)
        ],
    }


def _layer(plan: LayerPlan, stored: StoredBlock, ropes: tuple[RopePlan, ...]) -> dict[str, Any]:
    return {
        "input_norm": _norm(plan.input_norm, stored.input_norm),
        "mlp_norm": _norm(plan.mlp_norm, stored.mlp_norm),
        "attention": _attention(plan.attention, stored, ropes),
        "qkv": _weight(stored.qkv),
        "o": _weight(stored.o),
        **_second_half(plan.mlp, stored),
    }


def _second_half(plan: MlpPlan | MoePlan, stored: StoredBlock) -> dict[str, Any]:
    """The MLP's entries, or those of a mixture in a dictionary of their own."""
    if isinstance(stored, StoredLayer):
        assert isinstance(plan, MlpPlan), "the engine file was checked"
        return {**_mlp(plan, stored), "mixture": None}
    assert isinstance(plan, MoePlan), "the engine file was checked"
    return {"mixture": _mixture(plan, stored.mixture)}


def _mixture(plan: MoePlan, stored: StoredMixture) -> dict[str, Any]:
    mlps = stored.experts if stored.shared is None else (*stored.experts, stored.shared)
    return {
        "router": _weight(stored.router),
        "experts": [_mlp(mlp, each) for mlp, each in zip(plan.mlps, mlps, strict=True)],
        "top_k": plan.top_k,
        "normalize_top_k": plan.normalize_top_k,
        "shared": plan.shared is not None,
        "shared_gate": plan.shared_gate is not None,
    }


def _mlp(plan: MlpPlan, stored: StoredLayer | StoredMlp) -> dict[str, Any]:
    return {
        "gate_up": _weight(stored.gate_up),
        "down": _weight(stored.down),
        "activation": plan.activation,
        "intermediate_size": plan.down.in_features,
    }


def _kv_scales(engine: EngineFile, plan: LayerPlan) -> dict[str, Any]:
    """Of an FP8 cache, one a KV head; 1 where none were calibrated."""
    known = engine.kv_scales[plan.index] if engine.kv_scales else LayerKVScales((1.0,), (1.0,))
    keys, values = known.by_head(plan.attention.num_kv_heads)
    return {"key_scales": list(keys), "value_scales": list(values)}


def _attention(plan: AttentionPlan, stored: StoredBlock, ropes: tuple[RopePlan, ...]) -> dict[str, Any]:
    return {
        "num_heads": plan.num_heads,
        "num_kv_heads": plan.num_kv_heads,
        "head_dim": plan.head_dim,
        "scale": plan.scale,
        "softcap": plan.logit_softcap or 0.0,
        "window": plan.sliding_window or 0,
        "rope": -1 if plan.rope is None else ropes.index(plan.rope),
        "q_norm": _norm(plan.q_norm, stored.q_norm),
        "k_norm": _norm(plan.k_norm, stored.k_norm),
    }


def _norm(plan: NormPlan | None, stored: StoredTensor | None) -> dict[str, Any] | None:
    if plan is None or stored is None:
        return None
    return {"offset": stored.offset, "size": plan.size, "eps": plan.eps}


def _weight(stored: StoredWeight) -> dict[str, Any]:
    return {
        "kind": stored.kind,
        "rows": stored.rows,
        "columns": stored.columns,
        "group": stored.group,
        "zero_points": stored.zero_points,
        "offset": stored.offset,
        "bytes": stored.bytes,
        "outputs": list(stored.outputs),
        "bias": None if stored.bias is None else {"offset": stored.bias.offset},
    }
