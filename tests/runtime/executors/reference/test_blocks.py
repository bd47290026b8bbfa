"""The decoder block's parts against slow, obvious twins."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gristmill.runtime.errors import UnsupportedError
from gristmill.runtime.executors.reference.blocks import (
    apply_rotary,
    attend_masked,
    causal_attention,
    decoder_block,
    head_logits,
    rms_norm,
    rotary_tables,
    to_torch,
    visible,
)
from gristmill.runtime.executors.reference.linears import linear
from gristmill.runtime.model_plan import (
    AttentionPlan,
    LayerPlan,
    LinearPlan,
    MlpPlan,
    NormPlan,
    RopePlan,
)
from tests.tiny_checkpoints import dense_mlp

ROPE = RopePlan(rotary_dim=8, inv_freq=(1.0, 0.3, 0.1, 0.01))


def attention_plan(
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 8,
    window: int | None = None,
    softcap: float | None = None,
) -> AttentionPlan:
    hidden = 16
    return AttentionPlan(
        q=LinearPlan("q", hidden, heads * head_dim, bias=True),
        k=LinearPlan("k", hidden, kv_heads * head_dim),
        v=LinearPlan("v", hidden, kv_heads * head_dim),
        o=LinearPlan("o", heads * head_dim, hidden),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rope=ROPE,
        sliding_window=window,
        logit_softcap=softcap,
    )


def attention_by_hand(plan: AttentionPlan, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """One sequence [T, heads, D], one query head and position at a time, in float64."""
    out = torch.zeros_like(q)
    for head in range(plan.num_heads):
        shared = head // (plan.num_heads // plan.num_kv_heads)
        for t in range(q.shape[0]):
            first = 0 if plan.sliding_window is None else max(0, t - plan.sliding_window + 1)
            logits = [
                float(q[t, head].double() @ k[s, shared].double()) * plan.scale for s in range(first, t + 1)
            ]
            if plan.logit_softcap is not None:
                logits = [plan.logit_softcap * math.tanh(x / plan.logit_softcap) for x in logits]
            weights = torch.tensor(logits, dtype=torch.float64).softmax(0)
            out[t, head] = (weights[:, None] * v[first : t + 1, shared].double()).sum(0).to(q.dtype)
    return out


@given(
    length=st.integers(1, 12),
    kv_heads=st.sampled_from([1, 2, 4]),
    window=st.one_of(st.none(), st.integers(1, 14)),
    softcap=st.one_of(st.none(), st.floats(0.5, 30.0)),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=60)
def test_causal_attention_is_attention_by_hand(
    length: int, kv_heads: int, window: int | None, softcap: float | None, seed: int
) -> None:
    plan = attention_plan(kv_heads=kv_heads, window=window, softcap=softcap)
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(2, length, 4, 8, generator=generator)
    k, v = (torch.randn(2, length, kv_heads, 8, generator=generator) for _ in range(2))
    mixed = causal_attention(plan, q, k, v)
    by_hand = torch.stack([attention_by_hand(plan, q[b], k[b], v[b]) for b in range(2)])
    torch.testing.assert_close(mixed, by_hand, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_attention_without_a_mask_sees_every_key(softcap: float | None) -> None:
    plan = attention_plan(softcap=softcap)
    q, k, v = torch.randn(1, 1, 4, 8), torch.randn(1, 6, 2, 8), torch.randn(1, 6, 2, 8)
    everything = torch.ones(1, 1, 6, dtype=torch.bool)
    torch.testing.assert_close(attend_masked(plan, q, k, v, None), attend_masked(plan, q, k, v, everything))


def test_attention_needs_no_batch_dimension() -> None:
    plan = attention_plan()
    q, k, v = torch.randn(5, 4, 8), torch.randn(5, 2, 8), torch.randn(5, 2, 8)
    torch.testing.assert_close(
        causal_attention(plan, q, k, v), causal_attention(plan, q[None], k[None], v[None])[0]
    )


def test_a_query_sees_itself_and_its_window() -> None:
    seen = visible(torch.tensor([3, 4]), torch.arange(6), 2)
    assert seen.tolist() == [
        [False, False, True, True, False, False],
        [False, False, False, True, True, False],
    ]


def test_rms_norm_divides_by_the_root_mean_square() -> None:
    x, weight = torch.tensor([[3.0, -4.0]]), torch.tensor([1.0, 2.0])
    by_hand = torch.tensor([[3.0, -8.0]]) / math.sqrt(12.5 + 1e-5)
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), by_hand)


def test_rms_norm_of_bfloat16_is_computed_in_float32() -> None:
    x, weight = torch.randn(4, 64).bfloat16() * 300, torch.rand(64).bfloat16()
    exact = rms_norm(x.float(), torch.ones(64), 1e-5).bfloat16() * weight
    assert torch.equal(rms_norm(x, weight, 1e-5), exact)


def test_rms_norm_is_bit_for_bit_that_of_transformers() -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    x, norm = torch.randn(3, 64).bfloat16(), LlamaRMSNorm(64, eps=1e-6).bfloat16()
    torch.nn.init.normal_(norm.weight)
    assert torch.equal(rms_norm(x, norm.weight, 1e-6), norm(x))


def test_rotary_turns_channel_pairs_by_position_times_frequency() -> None:
    positions = torch.tensor([0, 1, 7, 200])
    x = torch.randn(4, 3, 8, dtype=torch.float64)
    turned = apply_rotary(x.float(), rotary_tables(ROPE, positions, torch.float32))
    pairs = torch.complex(x[..., :4], x[..., 4:])
    angles = positions[:, None].double() * torch.tensor(ROPE.inv_freq, dtype=torch.float64)
    by_hand = pairs * torch.polar(torch.ones_like(angles), angles)[:, None, :]
    torch.testing.assert_close(turned, torch.cat((by_hand.real, by_hand.imag), -1).float(), atol=1e-4, rtol=0)


def test_rotary_leaves_channels_beyond_rotary_dim() -> None:
    x = torch.randn(2, 1, 12)
    turned = apply_rotary(x, rotary_tables(ROPE, torch.tensor([3, 4]), torch.float32))
    assert torch.equal(turned[..., 8:], x[..., 8:])
    assert not torch.equal(turned[..., :8], x[..., :8])


def test_rotary_tables_carry_the_attention_factor() -> None:
    doubled = RopePlan(ROPE.rotary_dim, ROPE.inv_freq, attention_factor=2.0)
    plain = rotary_tables(ROPE, torch.arange(5), torch.float32)
    for table, expected in zip(rotary_tables(doubled, torch.arange(5), torch.float32), plain, strict=True):
        torch.testing.assert_close(table, expected * 2)


@pytest.mark.parametrize("rows", [1, 40])
def test_logits_of_a_bfloat16_head_are_not_rounded_to_bfloat16(rows: int) -> None:
    hidden, weight = torch.randn(rows, 64).bfloat16() * 4, torch.randn(300, 64).bfloat16()
    exact = hidden.double() @ weight.double().t()
    logits = head_logits(hidden, weight)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.double(), exact, atol=2e-3, rtol=0)
    assert (exact.bfloat16().double() - exact).abs().max() > 0.1


def layer_and_weights() -> tuple[LayerPlan, dict[str, torch.Tensor]]:
    attention = attention_plan()
    mlp = MlpPlan(LinearPlan("gate", 16, 24), LinearPlan("up", 16, 24), LinearPlan("down", 24, 16))
    layer = LayerPlan(0, NormPlan("norm1", 16, 1e-5), attention, NormPlan("norm2", 16, 1e-5), mlp)
    generator = torch.Generator().manual_seed(1)
    weights = {
        p.weight: torch.randn(p.out_features, p.in_features, generator=generator) for p in layer.linears
    }
    weights |= {
        "norm1.weight": torch.rand(16),
        "norm2.weight": torch.rand(16),
        "q.bias": torch.randn(32, generator=generator),
    }
    return layer, weights


def test_observe_sees_each_input_group_in_order() -> None:
    layer, weights = layer_and_weights()
    seen: list[tuple[tuple[LinearPlan, ...], torch.Tensor]] = []
    rotary = rotary_tables(ROPE, torch.arange(6), torch.float32)
    decoder_block(
        layer, weights, torch.randn(2, 6, 16), rotary, causal_attention, lambda g, x: seen.append((g, x))
    )
    assert [group for group, _ in seen] == list(layer.input_groups)
    assert [tuple(x.shape) for _, x in seen] == [(2, 6, 16), (2, 6, 32), (2, 6, 16), (2, 6, 24)]


def test_observe_sees_what_the_linear_reads() -> None:
    layer, weights = layer_and_weights()
    inputs: dict[str, torch.Tensor] = {}
    rotary = rotary_tables(ROPE, torch.arange(6), torch.float32)
    hidden = torch.randn(6, 16)
    out = decoder_block(
        layer, weights, hidden, rotary, causal_attention, lambda g, x: inputs.update({p.name: x for p in g})
    )
    attended = hidden + linear(layer.attention.o, weights, inputs["o"])
    torch.testing.assert_close(out, attended + linear(dense_mlp(layer).down, weights, inputs["down"]))


def test_a_block_treats_the_sequences_of_a_batch_alike() -> None:
    layer, weights = layer_and_weights()
    hidden = torch.randn(3, 6, 16)
    rotary = rotary_tables(ROPE, torch.arange(6), torch.float32)
    together = decoder_block(layer, weights, hidden, rotary, causal_attention)
    alone = torch.stack([decoder_block(layer, weights, h, rotary, causal_attention) for h in hidden])
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32, np.int32, np.uint8])
def test_to_torch_keeps_values_and_type(dtype: type) -> None:
    array: NDArray[Any] = np.arange(6).reshape(2, 3).astype(dtype)
    tensor = to_torch(array)
    assert str(tensor.dtype) == f"torch.{array.dtype.name}"
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_to_torch_shares_the_memory_of_a_writable_array() -> None:
    array: NDArray[Any] = np.zeros(4, dtype=ml_dtypes.bfloat16)
    to_torch(array)[1] = 2.0
    assert array.tolist() == [0, 2, 0, 0]


def test_to_torch_copies_a_read_only_array() -> None:
    array: NDArray[Any] = np.zeros(4, dtype=np.float32)
    array.flags.writeable = False
    to_torch(array)[1] = 2.0
    assert array.tolist() == [0, 0, 0, 0]


def test_to_torch_refuses_types_that_weights_do_not_have() -> None:
    with pytest.raises(UnsupportedError, match="float8_e4m3fn"):
        to_torch(np.zeros(2, dtype=ml_dtypes.float8_e4m3fn))
