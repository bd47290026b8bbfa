"""Weights in memory: every tensor of a plan in the compute dtype, quantized ones dequantized once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import torch

from gristmill.runtime.errors import ModelError
from gristmill.runtime.executors.reference.activations import require_supported
from gristmill.runtime.executors.reference.blocks import to_torch
from gristmill.runtime.executors.reference.float_codes import float_values
from gristmill.runtime.kv_scales import KVScales
from gristmill.runtime.model_plan import LinearPlan, ModelPlan
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme
from gristmill.runtime.sources.base import Tensor

__all__ = ["StreamedWeights", "WeightSource", "dequantize", "load_weights"]

_ROWS_AT_ONCE = 1024


class WeightSource(Protocol):
    """What the reference executor needs of a checkpoint."""

    @property
    def plan(self) -> ModelPlan: ...

    @property
    def schemes(self) -> Mapping[str, QuantScheme]:
        """The schemes of quantized linears by name."""

    @property
    def kv_scales(self) -> KVScales:
        """Those of an FP8 cache; empty where none were calibrated."""

    def weight(self, linear: LinearPlan) -> QuantizedTensor | Tensor:
        """A linear's weight [out, in]."""

    def tensor(self, name: str) -> Tensor:
        """Any other tensor by checkpoint name."""


def dequantize(quantized: QuantizedTensor, dtype: torch.dtype) -> torch.Tensor:
    """`QuantizedTensor.dequantize` rounded to `dtype`, a few rows at a time: [N, K].

    The float32 intermediate never exceeds `_ROWS_AT_ONCE` rows.
    """
    groups = torch.from_numpy(quantized.column_groups).long()
    codes, scales = to_torch(quantized.codes), to_torch(quantized.scales)
    zeros = None if quantized.zero_points is None else to_torch(quantized.zero_points)
    weight = torch.empty(quantized.shape, dtype=dtype)
    for first in range(0, codes.shape[0], _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        if quantized.scheme.type == "float":
            weight[rows] = float_values(codes[rows], quantized.scheme.bits) * scales[rows][:, groups]
            continue
        zero = quantized.scheme.midpoint if zeros is None else zeros[rows].float()[:, groups]
        weight[rows] = (codes[rows].float() - zero) * scales[rows][:, groups]
    return weight


def load_weights(source: WeightSource, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Every tensor of `source.plan` by checkpoint name; a tied head is the embedding itself.

    Static input scales come with them. Raises ModelError for a tensor of
    another shape than the plan's, and UnsupportedError, naming the linear, for
    an activation scheme that the executor does not have.
    """
    weights: dict[str, torch.Tensor] = {}
    packed = {linear.weight for linear in _linears(source)}
    for name, shape in source.plan.tensor_shapes().items():
        if name not in packed:
            weights[name] = _checked(name, to_torch(source.tensor(name)).to(dtype), shape)
    for linear in _linears(source):
        weight = source.weight(linear)
        if isinstance(weight, QuantizedTensor) and weight.input_scale is not None:
            weights[f"{linear.name}.input_scale"] = torch.tensor([weight.input_scale])
        weights[linear.weight] = _dense(linear, weight, dtype)
    return weights


class StreamedWeights(Mapping[str, torch.Tensor]):
    """The tensors of `load_weights`, each read whenever it is asked for and not kept.

    Input scales, which are a number each, are kept. Raises UnsupportedError at
    once, ModelError when a tensor is read.
    """

    def __init__(self, source: WeightSource, dtype: torch.dtype) -> None:
        self._source = source
        self._dtype = dtype
        self._shapes = source.plan.tensor_shapes()
        self._linears = {linear.weight: linear for linear in _linears(source)}
        self._input_scales: dict[str, torch.Tensor] = {}
        for linear in self._linears.values():
            if (scheme := source.schemes.get(linear.name)) is not None and scheme.is_static:
                weight = source.weight(linear)
                assert isinstance(weight, QuantizedTensor)
                self._input_scales[f"{linear.name}.input_scale"] = torch.tensor([weight.input_scale])

    def __getitem__(self, name: str) -> torch.Tensor:
        if name in self._input_scales:
            return self._input_scales[name]
        if (linear := self._linears.get(name)) is not None:
            return _dense(linear, self._source.weight(linear), self._dtype)
        return _checked(name, to_torch(self._source.tensor(name)).to(self._dtype), self._shapes[name])

    def __iter__(self) -> Iterator[str]:
        return iter((*self._shapes, *self._input_scales))

    def __len__(self) -> int:
        return len(self._shapes) + len(self._input_scales)


def _linears(source: WeightSource) -> Iterator[LinearPlan]:
    """All linears and the head, if it has a weight of its own; each must be of a scheme that is executed."""
    plan = source.plan
    for linear in (*plan.linears, *([] if plan.head is None else [plan.head])):
        if (scheme := source.schemes.get(linear.name)) is not None:
            require_supported(linear.name, scheme, is_head=linear is plan.head)
        yield linear


def _dense(linear: LinearPlan, weight: QuantizedTensor | Tensor, dtype: torch.dtype) -> torch.Tensor:
    dense = dequantize(weight, dtype) if isinstance(weight, QuantizedTensor) else to_torch(weight).to(dtype)
    return _checked(linear.weight, dense, (linear.out_features, linear.in_features))


def _checked(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    if tuple(tensor.shape) != shape:
        raise ModelError(f"tensor {name}: shape", found=tuple(tensor.shape), expected=shape)
    return tensor
