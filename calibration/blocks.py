"""One decoder block's weights, loaded when the walk comes to it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gristmill.calibration.observers import require_finite
from gristmill.runtime.errors import ModelError
from gristmill.runtime.executors.reference.blocks import to_torch
from gristmill.runtime.model_plan import LayerPlan
from gristmill.runtime.sources.base import ModelSource

__all__ = ["load_block", "load_tensor"]


def load_block(source: ModelSource, layer: LayerPlan, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """All tensors of one block in `dtype`, by checkpoint name.

    Raises ModelError, naming the tensor, if one is missing, has the wrong
    shape, or holds a NaN or an infinity.
    """
    return {name: load_tensor(source, name, shape, dtype) for name, shape in _shapes(layer)}


def load_tensor(source: ModelSource, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """One tensor in `dtype`; ModelError as for `load_block`."""
    array = source.load(name)
    if array.shape != shape:
        raise ModelError(f"tensor {name} of {source.name}", found=array.shape, expected=shape)
    tensor = to_torch(array).to(dtype)
    require_finite(tensor, f"tensor {name} of {source.name}")
    return tensor


def _shapes(layer: LayerPlan) -> Iterator[tuple[str, tuple[int, ...]]]:
    for linear in layer.linears:
        yield linear.weight, (linear.out_features, linear.in_features)
        if linear.bias:
            yield f"{linear.name}.bias", (linear.out_features,)
    norms = (layer.input_norm, layer.mlp_norm, layer.attention.q_norm, layer.attention.k_norm)
    yield from ((f"{norm.name}.weight", (norm.size,)) for norm in norms if norm is not None)
