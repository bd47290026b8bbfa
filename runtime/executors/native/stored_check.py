"""Whether the tensors that an engine's plan file lists are those of its model, and where they may lie."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gristmill.runtime.errors import InputError
from gristmill.runtime.executors.native.stored import (
    EngineFile,
    StoredBlock,
    StoredLayer,
    StoredMixture,
    StoredMlp,
    StoredTensor,
    StoredWeight,
)
from gristmill.runtime.kernels.layout import TILE_ROWS, WeightForm, padded_columns, padded_rows
from gristmill.runtime.model_plan import LayerPlan, LinearPlan, MlpPlan, MoePlan, NormPlan

__all__ = ["HEADER_BYTES", "check_stored"]

HEADER_BYTES = 4096
_ALIGNMENT = 64

_ITEM_BYTES = {"float32": 4, "bfloat16": 2}
_Place = tuple[int, int, str]  # offset, bytes, name


def check_stored(engine: EngineFile) -> None:
    """Raise InputError for a tensor whose form, size or place does not follow from the model, by its path.

    Nothing of the weights file is read; places are compared with the size that the plan file states.
    """
    _check_tensors(engine)
    places = sorted(_places(engine))
    end, before = HEADER_BYTES, "the header"
    for offset, size, name in places:
        if offset % _ALIGNMENT:
            raise InputError(f"{name}.offset", found=offset, expected=f"a multiple of {_ALIGNMENT}")
        if offset < end:
            raise InputError(f"{name}.offset", found=offset, expected=f"at least {end}, the end of {before}")
        if size < 1 or offset + size > engine.bytes:
            found = f"{size} bytes at {offset}"
            raise InputError(name, found=found, expected=f"inside the file of {engine.bytes} bytes")
        end, before = offset + size, name


def _check_tensors(engine: EngineFile) -> None:
    plan = engine.plan
    embedding = (plan.vocab_size, plan.hidden_size)
    _check_tensor("embedding", engine.embedding, embedding, ("float32", "bfloat16"))
    _check_norm("final_norm", engine.final_norm, plan.final_norm)
    head = plan.head or LinearPlan(plan.embedding, plan.hidden_size, plan.vocab_size)
    _check_weight("head", engine.head, (head,))
    if len(engine.layers) != len(plan.layers):
        raise InputError("layers", found=len(engine.layers), expected=f"{len(plan.layers)} of them")
    for index, (stored, layer) in enumerate(zip(engine.layers, plan.layers, strict=True)):
        _check_layer(f"layers[{index}]", stored, layer)


def _check_layer(name: str, stored: StoredBlock, plan: LayerPlan) -> None:
    attention = plan.attention
    _check_norm(f"{name}.input_norm", stored.input_norm, plan.input_norm)
    _check_norm(f"{name}.mlp_norm", stored.mlp_norm, plan.mlp_norm)
    _check_norm(f"{name}.q_norm", stored.q_norm, attention.q_norm)
    _check_norm(f"{name}.k_norm", stored.k_norm, attention.k_norm)
    _check_weight(f"{name}.qkv", stored.qkv, (attention.q, attention.k, attention.v))
    _check_weight(f"{name}.o", stored.o, (attention.o,))
    if isinstance(stored, StoredLayer) and isinstance(plan.mlp, MlpPlan):
        _check_mlp(name, stored, plan.mlp)
    elif not isinstance(stored, StoredLayer) and isinstance(plan.mlp, MoePlan):
        _check_mixture(f"{name}.mixture", stored.mixture, plan.mlp)
    else:
        found = "one MLP" if isinstance(stored, StoredLayer) else "a mixture"
        raise InputError(name, found=found, expected="what the model has")


def _check_mixture(name: str, stored: StoredMixture, plan: MoePlan) -> None:
    _equal(f"{name}.router.kind", stored.router.kind, "float32")
    _check_weight(f"{name}.router", stored.router, plan.routers)
    _equal(f"{name}.experts", len(stored.experts), len(plan.experts))
    for index, (expert, mlp) in enumerate(zip(stored.experts, plan.experts, strict=True)):
        _check_mlp(f"{name}.experts[{index}]", expert, mlp)
    if stored.shared is not None and plan.shared is not None:
        _check_mlp(f"{name}.shared", stored.shared, plan.shared)
    elif (stored.shared is None) != (plan.shared is None):
        found = "nothing" if stored.shared is None else "an expert"
        raise InputError(f"{name}.shared", found=found, expected="what the model has")


def _check_mlp(name: str, stored: StoredLayer | StoredMlp, plan: MlpPlan) -> None:
    _check_weight(f"{name}.gate_up", stored.gate_up, (plan.gate, plan.up), interleaved=True)
    _check_weight(f"{name}.down", stored.down, (plan.down,))


def _check_norm(name: str, tensor: StoredTensor | None, plan: NormPlan | None) -> None:
    if tensor is not None and plan is not None:
        _check_tensor(name, tensor, (plan.size,))
    elif (tensor is None) != (plan is None):
        raise InputError(name, found="nothing" if tensor is None else "a norm", expected="what the model has")


def _check_tensor(
    name: str, tensor: StoredTensor, shape: tuple[int, ...], dtypes: tuple[str, ...] = ("float32",)
) -> None:
    if tensor.dtype not in dtypes:
        raise InputError(f"{name}.dtype", found=tensor.dtype, expected=" or ".join(dtypes))
    if tensor.shape != shape:
        raise InputError(f"{name}.shape", found=list(tensor.shape), expected=list(shape))
    _equal(f"{name}.bytes", tensor.bytes, math.prod(shape) * _ITEM_BYTES[tensor.dtype])


def _check_weight(
    name: str, weight: StoredWeight, parts: tuple[LinearPlan, ...], *, interleaved: bool = False
) -> None:
    outputs = tuple(part.out_features for part in parts)
    _equal(f"{name}.in_features", weight.in_features, parts[0].in_features)
    _equal(f"{name}.outputs", weight.outputs, outputs)
    _equal(f"{name}.rows", weight.rows, _fused_rows(outputs, interleaved=interleaved))
    _equal(f"{name}.columns", weight.columns, padded_columns(parts[0].in_features))
    try:
        form = WeightForm(weight.kind, weight.columns, weight.group, weight.zero_points)
    except InputError as error:
        raise InputError(f"{name}: {error.what}", found=error.found, expected=error.expected) from error
    _equal(f"{name}.bytes", weight.bytes, weight.rows // TILE_ROWS * form.tile_bytes)
    if any(part.bias for part in parts) != (weight.bias is not None):
        found = "nothing" if weight.bias is None else "a bias"
        raise InputError(f"{name}.bias", found=found, expected="what the model has")
    if weight.bias is not None:
        _check_tensor(f"{name}.bias", weight.bias, (weight.rows,))


def _fused_rows(outputs: tuple[int, ...], *, interleaved: bool) -> int:
    """Padded rows of a weight with parts of `outputs` rows: each padded alone, or in pairs of 16 a tile."""
    return padded_rows(2 * outputs[0]) if interleaved else sum(map(padded_rows, outputs))


def _equal(name: str, found: object, expected: object) -> None:
    if found != expected:
        raise InputError(name, found=found, expected=expected)


def _places(engine: EngineFile) -> Iterator[_Place]:
    yield engine.embedding.offset, engine.embedding.bytes, "embedding"
    yield engine.final_norm.offset, engine.final_norm.bytes, "final_norm"
    yield from _weight_places("head", engine.head)
    for index, layer in enumerate(engine.layers):
        for field in ("input_norm", "mlp_norm", "q_norm", "k_norm"):
            tensor: StoredTensor | None = getattr(layer, field)
            if tensor is not None:
                yield tensor.offset, tensor.bytes, f"layers[{index}].{field}"
        for field, weight in layer.weights.items():
            yield from _weight_places(f"layers[{index}].{field}", weight)


def _weight_places(name: str, weight: StoredWeight) -> Iterator[_Place]:
    yield weight.offset, weight.bytes, name
    if weight.bias is not None:
        yield weight.bias.offset, weight.bias.bytes, f"{name}.bias"
