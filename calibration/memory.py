"""What a walk takes, stated before it starts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from gristmill.calibration.batches import BATCH_TOKENS
from gristmill.runtime.executors.reference.products import has_bfloat16_units
from gristmill.runtime.model_plan import LayerPlan, ModelPlan, MoePlan

__all__ = ["walk_memory"]

_ALLOCATOR_SHARE = 1.15
"""Memory that the allocator holds for each byte that is asked of it."""


def walk_memory(
    plan: ModelPlan,
    tokens: int,
    compute: Literal["bfloat16", "float32"],
    *,
    batch_tokens: int = BATCH_TOKENS,
    follow_original: bool = True,
    layer_work: Callable[[LayerPlan], int] = lambda layer: 0,
) -> int:
    """An upper bound of the bytes a `BlockWalk` over `tokens` tokens, padding included, holds at once.

    That is the states of all tokens, two blocks (the original and the one being
    quantized), the statistics of one block and the temporaries of one batch; or,
    if it is more, the embedding with which the walk begins. `layer_work` says what
    a quantization method holds while it works on one group of linears, that group's
    statistics included: the batch is gone then.
    """
    width = 2 if compute == "bfloat16" else 4
    walking = max(
        _states(plan, layer, tokens, width, follow_original)
        + 2 * _parameters(layer) * width
        + max(
            _statistics(layer) + _temporaries(plan, layer, min(batch_tokens, tokens), width),
            layer_work(layer),
        )
        for layer in plan.layers
    )
    embedding = plan.vocab_size * plan.hidden_size * (width + 4) + tokens * plan.hidden_size * width
    return int(_ALLOCATOR_SHARE * max(walking, embedding))


def _parameters(layer: LayerPlan) -> int:
    return sum(map(math.prod, layer.tensor_shapes().values()))


def _states(plan: ModelPlan, layer: LayerPlan, tokens: int, width: int, follow_original: bool) -> int:
    """Hidden states before, in the middle of and behind the block; inputs of o and down, or of the experts.

    The original's, before and in the middle, are counted as if every sequence were followed.
    """
    copies = 5 if follow_original else 3
    behind = plan.hidden_size if isinstance(layer.mlp, MoePlan) else layer.mlp.width
    inputs = layer.attention.o.in_features + behind
    return tokens * (copies * plan.hidden_size + inputs) * width


def _statistics(layer: LayerPlan) -> int:
    """The Hessians of all scaling groups, or of one group that of plain and followed tokens and the gap."""
    groups = layer.input_groups
    gaps = [group[0].in_features if len(group) > 1 else group[0].out_features for group in groups]
    sizes = [group[0].in_features for group in groups]
    one = max(2 * size * size + gap * size for size, gap in zip(sizes, gaps, strict=True))
    one *= 2 if isinstance(layer.mlp, MoePlan) else 1  # an expert's own, and those of all tokens
    return 4 * max(sum(group.linears[0].in_features ** 2 for group in layer.scaling_groups), one)


def _temporaries(plan: ModelPlan, layer: LayerPlan, tokens: int, width: int) -> int:
    """One batch inside the block, in the compute dtype, and its float32 copies."""
    widest = max(linear.out_features for linear in layer.linears)
    inputs = max(linear.in_features for linear in layer.linears)
    attention = layer.attention.q.out_features + 2 * layer.attention.k.out_features
    narrow = 3 * widest + 3 * attention + 2 * plan.hidden_size
    copies = tokens * (narrow * width + (2 * inputs + 4 * plan.hidden_size) * 4)
    if width == 2 and not has_bfloat16_units():  # one linear's weight, input and output, in float32
        weight = max(linear.in_features * linear.out_features for linear in layer.linears)
        copies += 4 * (weight + tokens * (inputs + widest))
    return copies
