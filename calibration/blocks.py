"""One decoder block's weights, loaded when the walk comes to it."""

from __future__ import annotations

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
    return {name: load_tensor(source, name, shape, dtype) for name, shape in layer.tensor_shapes().items()}


def load_tensor(source: ModelSource, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """One tensor in `dtype`; ModelError as for `load_block`."""
    array = source.load(name)
    if array.shape != shape:
        raise ModelError(f"tensor {name} of {source.name}", found=array.shape, expected=shape)
    tensor = to_torch(array).to(dtype)
    require_finite(tensor, f"tensor {name} of {source.name}")
    return tensor
