"""A linear in torch: its weight by checkpoint name, its input quantized where its scheme says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import torch

from gristmill.runtime.executors.reference.activations import fake_quantize
from gristmill.runtime.executors.reference.products import product
from gristmill.runtime.model_plan import LinearPlan
from gristmill.runtime.scheme import QuantScheme

__all__ = ["UNQUANTIZED", "Observe", "Schemes", "Weights", "linear"]

Weights: TypeAlias = Mapping[str, torch.Tensor]
"""Tensors by checkpoint name, in the compute dtype; static input scales as `{linear}.input_scale` [1]."""

Schemes: TypeAlias = Mapping[str, QuantScheme | None]
"""By linear name; a scheme with an activation scheme quantizes what the linear reads."""

UNQUANTIZED: Schemes = MappingProxyType({})

Observe: TypeAlias = Callable[[tuple[LinearPlan, ...], torch.Tensor], None]
"""Called with linears that read one tensor, and that tensor `[..., K]` for all tokens.

Those are the groups of `layer.input_groups` in order; of a mixture of experts
only the linears that read the norm, together: an expert's own inputs are those
of its tokens alone.
"""


def linear(
    plan: LinearPlan, weights: Weights, x: torch.Tensor, schemes: Schemes = UNQUANTIZED
) -> torch.Tensor:
    """`x W^T + b`, with x quantized where the linear's scheme says so."""
    scheme = schemes.get(plan.name)
    if scheme is not None and scheme.activation is not None:
        x = fake_quantize(x, scheme, weights[f"{plan.name}.input_scale"] if scheme.is_static else None)
    return product(x, weights[plan.weight], weights[f"{plan.name}.bias"] if plan.bias else None)
