"""The decoder block in torch: the one definition that is calibrated, validated and served.

Activations keep any number of leading dimensions: `[..., T, hidden]` here is
`[B, T, hidden]` in calibration and the flattened `[T, hidden]` of a mixed batch
in the executor. Weights are looked up by checkpoint name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as F

from gristmill.runtime.errors import UnsupportedError
from gristmill.runtime.executors.reference.linears import UNQUANTIZED, Observe, Schemes, Weights, linear
from gristmill.runtime.executors.reference.mlp import mlp_output
from gristmill.runtime.executors.reference.products import exact_product
from gristmill.runtime.model_plan import AttentionPlan, LayerPlan, NormPlan, RopePlan
from gristmill.runtime.sources.base import Tensor

__all__ = [
    "Attend",
    "Rotary",
    "apply_rotary",
    "attend_masked",
    "causal_attention",
    "decoder_block",
    "head_logits",
    "rms_norm",
    "rotary_tables",
    "to_numpy",
    "to_torch",
    "visible",
]

Rotary: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines, each `[T, rotary_dim]`."""

Attend: TypeAlias = Callable[[AttentionPlan, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""`(plan, q [..., T, H, D], k [..., T, KV, D], v [..., T, KV, D]) -> [..., T, H, D]`; q and k are rotated."""


def to_torch(array: Tensor) -> torch.Tensor:
    """A numpy array as a torch tensor of the same type, `ml_dtypes.bfloat16` included.

    Shares memory if the array is writable and contiguous. A read-only array is
    copied, because a torch tensor can always be written to. Raises
    UnsupportedError for types that torch does not have.
    """
    owned = np.require(array, requirements=["C", "W"])
    if owned.dtype.name == "bfloat16":
        return torch.from_numpy(owned.view(np.uint16)).view(torch.bfloat16)
    try:
        return torch.from_numpy(owned)
    except TypeError as error:
        raise UnsupportedError(
            "tensor type", found=array.dtype.name, expected="float32, float16, bfloat16 or integers"
        ) from error


def to_numpy(tensor: torch.Tensor) -> Tensor:
    """Inverse of `to_torch`, sharing memory."""
    if tensor.dtype is torch.bfloat16:
        return tensor.contiguous().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return np.asarray(tensor.numpy())


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last axis (Zhang & Sennrich 2019, eq. 4).

    The normalization is float32 whatever the dtype of `hidden`; its result is
    rounded to that dtype before the weight is applied.
    """
    normed = F.rms_norm(hidden.float(), hidden.shape[-1:], eps=eps)
    return weight * normed.to(hidden.dtype)


def rotary_tables(rope: RopePlan, positions: torch.Tensor, dtype: torch.dtype) -> Rotary:
    """Cosines and sines of `positions` [T], each `[T, rotary_dim]` in `dtype`; angles are float32."""
    inv_freq = torch.tensor(rope.inv_freq, dtype=torch.float32)
    angles = positions.float()[:, None] * inv_freq
    angles = torch.cat((angles, angles), dim=-1)
    return (
        (angles.cos() * rope.attention_factor).to(dtype),
        (angles.sin() * rope.attention_factor).to(dtype),
    )


def apply_rotary(x: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """Rotate `x` [..., T, heads, D] by position, half-split layout (Su et al. 2021, eq. 34).

    Only the first `rotary_dim` channels of each head turn; the rest pass through.
    """
    cos, sin = (table[:, None, :] for table in rotary)
    size = cos.shape[-1]
    turned, kept = x[..., :size], x[..., size:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-second, first), dim=-1) * sin
    return turned if kept.shape[-1] == 0 else torch.cat((turned, kept), dim=-1)


def head_logits(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Logits `[rows, vocab]` in float32 of normed `hidden` [rows, hidden] and the head's weight.

    bfloat16 would keep a logit of 20 to 1/8, which makes ties of near winners.
    """
    return exact_product(hidden, weight)


def causal_attention(plan: AttentionPlan, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of whole sequences that start at position 0: an `Attend` over `[..., T, heads, D]`."""
    length = q.shape[-3]
    window = plan.sliding_window
    if plan.logit_softcap is None and (window is None or length <= window):
        q, k, v = q.transpose(-3, -2), k.transpose(-3, -2), v.transpose(-3, -2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=plan.scale, enable_gqa=True)
        return mixed.transpose(-3, -2)
    positions = torch.arange(length)
    return attend_masked(plan, q, k, v, visible(positions, positions, window))


def visible(queries: torch.Tensor, keys: torch.Tensor, window: int | None) -> torch.Tensor:
    """Which key positions [..., S] each query position [..., T] sees, bool [..., T, S].

    A query sees itself and what came before, `window` positions in all.
    """
    distance = queries[..., :, None] - keys[..., None, :]
    seen = distance >= 0
    return seen if window is None else seen & (distance < window)


def attend_masked(
    plan: AttentionPlan,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """Attention of q [..., T, H, D] over k, v [..., S, KV, D] where `mask` (bool, [..., T, S]) is true.

    Without a mask every query sees every key; with one, it must see at least
    one. A soft cap (Gemma 2, section 2) squashes the logits, in float32, before
    the mask.
    """
    q, k, v = q.transpose(-3, -2), k.transpose(-3, -2), v.transpose(-3, -2)
    mask = None if mask is None else mask[..., None, :, :]
    if plan.logit_softcap is None:
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=plan.scale, enable_gqa=True)
        return mixed.transpose(-3, -2)
    repeats = plan.num_heads // plan.num_kv_heads
    k, v = (x.repeat_interleave(repeats, dim=-3) for x in (k, v))
    logits = (q @ k.transpose(-2, -1)).float() * plan.scale
    logits = plan.logit_softcap * torch.tanh(logits / plan.logit_softcap)
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf)
    return (logits.softmax(dim=-1).to(v.dtype) @ v).transpose(-3, -2)


def decoder_block(
    layer: LayerPlan,
    weights: Weights,
    hidden: torch.Tensor,
    rotary: Rotary | None,
    attend: Attend,
    observe: Observe | None = None,
    schemes: Schemes = UNQUANTIZED,
) -> torch.Tensor:
    """One pre-norm block: `h = x + attention(norm(x))`, then `h + mlp(norm(h))`; `[..., T, hidden]`.

    `rotary` holds the tables of the T positions (of no use to a layer without
    rope). `observe` sees what the linears of a group read, before any
    quantization; it must not change the tensor it is handed.
    """
    hidden = hidden + _attention(layer, weights, hidden, rotary, attend, observe, schemes)
    return hidden + mlp_output(layer.mlp, weights, _norm(layer.mlp_norm, weights, hidden), observe, schemes)


def _attention(
    layer: LayerPlan,
    weights: Weights,
    hidden: torch.Tensor,
    rotary: Rotary | None,
    attend: Attend,
    observe: Observe | None,
    schemes: Schemes,
) -> torch.Tensor:
    plan = layer.attention
    x = _norm(layer.input_norm, weights, hidden)
    if observe is not None:
        observe((plan.q, plan.k, plan.v), x)
    q = _heads(linear(plan.q, weights, x, schemes), plan.num_heads)
    k = _heads(linear(plan.k, weights, x, schemes), plan.num_kv_heads)
    v = _heads(linear(plan.v, weights, x, schemes), plan.num_kv_heads)
    q = q if plan.q_norm is None else _norm(plan.q_norm, weights, q)
    k = k if plan.k_norm is None else _norm(plan.k_norm, weights, k)
    if plan.rope is not None:
        assert rotary is not None, f"layer {layer.index} needs rotary tables"
        q, k = apply_rotary(q, rotary), apply_rotary(k, rotary)
    mixed = attend(plan, q, k, v).flatten(-2)
    if observe is not None:
        observe((plan.o,), mixed)
    return linear(plan.o, weights, mixed, schemes)


def _heads(x: torch.Tensor, count: int) -> torch.Tensor:
    return x.view(*x.shape[:-1], count, -1)


def _norm(plan: NormPlan, weights: Weights, x: torch.Tensor) -> torch.Tensor:
    return rms_norm(x, weights[f"{plan.name}.weight"], plan.eps)
