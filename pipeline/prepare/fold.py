"""Fold input scales away: multiply a weight's columns, divide whatever produced their input.

The function that the block computes is unchanged: y = (W diag(s)) (x / s).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from gristmill.runtime.errors import InternalError
from gristmill.runtime.model_plan import ScalingGroup

__all__ = ["fold_scales", "shared_scales"]


def fold_scales(
    weights: Mapping[str, torch.Tensor], group: ScalingGroup, scales: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The tensors that change, by checkpoint name and in their own dtype; nothing is altered in place.

    `scales` is float32 [K], positive, and equal over the repeats of a block
    (see `shared_scales`). The columns of `group.linears` and `group.routers` are
    multiplied, the output channels of `group.source`, its bias too, divided.
    """
    if not (torch.isfinite(scales) & (scales > 0)).all():
        raise InternalError(f"scales to fold into {group.source} are not all positive and finite")
    folded = {}
    for linear in (*group.linears, *group.routers):
        weight = weights[linear.weight]
        folded[linear.weight] = (weight.float() * scales).to(weight.dtype)
    channels = _source_channels(group, scales)
    name = f"{group.source}.weight"
    divisor = channels if group.source_kind == "norm" else channels[:, None]
    folded[name] = (weights[name].float() / divisor).to(weights[name].dtype)
    bias = f"{group.source}.bias"
    if bias in weights:
        folded[bias] = (weights[bias].float() / channels).to(weights[bias].dtype)
    return folded


def shared_scales(group: ScalingGroup, scales: torch.Tensor) -> torch.Tensor:
    """`scales` [K] with one value, the geometric mean, for all input channels that share a source channel.

    Where routers read the input too they are powers of two: folding these
    changes no bit of a router's logits, so every token keeps its experts.
    """
    if group.routers:
        return scales.log2().round().exp2()
    if group.repeats == 1:
        return scales
    blocks = scales.view(-1, group.repeats, group.block)
    return blocks.log().mean(1, keepdim=True).exp().expand_as(blocks).reshape(-1)


def _source_channels(group: ScalingGroup, scales: torch.Tensor) -> torch.Tensor:
    """One scale for each output channel of the source."""
    if group.repeats == 1:
        return scales
    blocks = scales.view(-1, group.repeats, group.block)
    if not torch.equal(blocks, blocks[:, :1].expand_as(blocks)):
        raise InternalError(f"scales to fold into {group.source} differ between heads that share a channel")
    return blocks[:, 0].reshape(-1)
