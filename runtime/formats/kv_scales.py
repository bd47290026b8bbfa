"""Scales of an FP8 cache in a checkpoint: their tensors under both names in use, and the block that has
engines read them.

compressed-tensors puts them on the attention module, `self_attn.k_scale`;
ModelOpt on the projections, `self_attn.k_proj.k_scale`. A scale for each head
has a place with the first only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from gristmill.runtime.errors import InputError, ModelError
from gristmill.runtime.formats.compressed_tensors_args import WHERE, expect
from gristmill.runtime.kv_scales import KVScales, LayerKVScales, ScaleShare, check_kv_scales, scale_share
from gristmill.runtime.model_plan import AttentionPlan, ModelPlan
from gristmill.runtime.sources.base import Tensor

__all__ = ["kv_cache_scheme", "kv_scale_tensors", "parse_kv_cache_scheme", "read_kv_scales"]

_STRATEGIES: Mapping[ScaleShare, str] = {"tensor": "tensor", "head": "attn_head"}
_SCHEME = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}
_SUFFIXES = (".k_scale", ".v_scale", ".q_scale", ".kv_scale")


def kv_cache_scheme(share: ScaleShare) -> dict[str, Any]:
    """The entry `kv_cache_scheme` of a compressed-tensors block."""
    return {**_SCHEME, "strategy": _STRATEGIES[share]}


def parse_kv_cache_scheme(found: Any) -> ScaleShare | None:
    """What shares a scale, None for no entry. Raises UnsupportedError for other quantized caches."""
    if not found:
        return None
    scheme = found if isinstance(found, Mapping) else {}
    for key, value in _SCHEME.items():
        expect(f"kv_cache_scheme.{key}", scheme.get(key, False if key == "dynamic" else None), value)
    expect("kv_cache_scheme.strategy", scheme.get("strategy"), *_STRATEGIES.values())
    return "tensor" if scheme["strategy"] == "tensor" else "head"


def kv_scale_tensors(plan: ModelPlan, scales: KVScales, dtype: np.dtype[Any]) -> dict[str, Tensor]:
    """The tensors of all layers; `dtype` is the model's.

    Raises InputError for scales that are not the plan's, or that `dtype` can't hold.
    """
    check_kv_scales(scales, plan)
    share = scale_share(scales)
    tensors: dict[str, Tensor] = {}
    for layer, known in zip(plan.layers, scales, strict=True):
        by_head = known.by_head(layer.attention.num_kv_heads)
        for names, one, each in zip(
            _names(layer.attention), (known.keys, known.values), by_head, strict=True
        ):
            exact = np.array(one if share == "tensor" else each, np.float32)
            stored = exact.astype(dtype)
            if (stored.astype(np.float32) != exact).any():
                raise InputError(f"scales {names[0]}", found=exact.tolist(), expected=f"numbers of {dtype}")
            tensors[names[0]] = stored if share == "tensor" else stored.reshape(-1, 1, 1)
            if share == "tensor":
                tensors[names[1]] = exact.reshape(())
    return tensors


def read_kv_scales(
    plan: ModelPlan, share: ScaleShare | None, names: Iterable[str], load: Callable[[str], Tensor]
) -> KVScales:
    """The scales among the tensors `names`, under either name; nothing without a `share`.

    Raises ModelError, naming the tensor, for scales that are missing, that
    differ between their two names, or that an engine would ignore.
    """
    stored = {name for name in names if name.endswith(_SUFFIXES)}
    planned = {name for layer in plan.layers for both in _names(layer.attention) for name in both}
    if ignored := sorted(stored if share is None else stored - planned):
        raise ModelError(
            f"tensor {ignored[0]}: a scale that engines would ignore",
            found=f"no kv_cache_scheme in the {WHERE}" if share is None else "no such layer's keys or values",
            expected="a scheme and a scale for each layer's keys and values",
        )
    if share is None:
        return ()
    scales = []
    for layer in plan.layers:
        heads = layer.attention.num_kv_heads if share == "head" else 1
        keys, values = (_read(both, stored, load, heads) for both in _names(layer.attention))
        scales.append(LayerKVScales(keys, values))
    try:
        check_kv_scales(tuple(scales), plan)
    except InputError as error:
        raise ModelError(error.what, found=error.found, expected=error.expected) from error
    return tuple(scales)


def _read(
    names: tuple[str, str], stored: set[str], load: Callable[[str], Tensor], count: int
) -> tuple[float, ...]:
    found = {name: load(name).astype(np.float32).reshape(-1) for name in names if name in stored}
    if not found:
        raise ModelError(
            f"tensor {names[0]}",
            found="missing, engines would take 1 instead",
            expected=f"a scale there or at {names[1]}",
        )
    for name, values in found.items():
        if len(values) != count:
            raise ModelError(f"tensor {name}", found=f"{len(values)} scales", expected=count)
    first, *others = found.values()
    if any((other != first).any() for other in others):
        raise ModelError(f"tensors {names[0]} and {names[1]}", found="two scales", expected="the same scale")
    return tuple(map(float, first))


def _names(attention: AttentionPlan) -> Iterator[tuple[str, str]]:
    """Of keys, then of values: the name on the attention module and the one on the projection."""
    module = attention.k.name.rpartition(".")[0]
    yield f"{module}.k_scale", f"{attention.k.name}.k_scale"
    yield f"{module}.v_scale", f"{attention.v.name}.v_scale"
