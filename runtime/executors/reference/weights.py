"""Weights in memory: every tensor of a plan in the compute dtype, quantized ones dequantized once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from gristmill.runtime.errors import ModelError
from gristmill.runtime.executors.reference.activations import require_supported
from gristmill.runtime.executors.reference.blocks import to_torch
from gristmill.runtime.kv_scales import KVScales
from gristmill.runtime.model_plan import LinearPlan, ModelPlan
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme
from gristmill.runtime.sources.base import Tensor

__all__ = ["WeightSource", "dequantize", "load_weights"]

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
            weight[rows] = codes[rows].view(torch.float8_e4m3fn).float() * scales[rows][:, groups]
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
    plan = source.plan
    weights: dict[str, torch.Tensor] = {}
    linears = (*plan.linears, *([] if plan.head is None else [plan.head]))
    packed = {linear.weight for linear in linears}
    for name, shape in plan.tensor_shapes().items():
        if name not in packed:
            weights[name] = _checked(name, to_torch(source.tensor(name)).to(dtype), shape)
    for linear in linears:
        weight = source.weight(linear)
        if isinstance(weight, QuantizedTensor):
            require_supported(linear.name, weight.scheme, is_head=linear is plan.head)
            if weight.input_scale is not None:
                weights[f"{linear.name}.input_scale"] = torch.tensor([weight.input_scale])
            dense = dequantize(weight, dtype)
        else:
            dense = to_torch(weight).to(dtype)
        weights[linear.weight] = _checked(linear.weight, dense, (linear.out_features, linear.in_features))
    return weights


def _checked(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    if tuple(tensor.shape) != shape:
        raise ModelError(f"tensor {name}: shape", found=tuple(tensor.shape), expected=shape)
    return tensor
