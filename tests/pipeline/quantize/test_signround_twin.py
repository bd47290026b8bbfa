"""Learned rounding takes the steps that it says, and never ends worse than it began."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gristmill.calibration.batches import Batch
from gristmill.calibration.pairs import BlockPair
from gristmill.pipeline.quantize.rtn import quantize_rtn
from gristmill.pipeline.quantize.signround import SignRoundSettings, learn_rounding, relative_loss
from gristmill.runtime.errors import InputError, ModelError
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme

COLUMNS = 32
SCHEMES = [
    QuantScheme(4, 16, symmetric=True),
    QuantScheme(4, 8, symmetric=False),
    QuantScheme(3, -1, symmetric=False),
    QuantScheme(2, 16, symmetric=True),
    QuantScheme(8, 16, symmetric=True),
]
by_name = pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
SETTINGS = SignRoundSettings(iterations=30, learning_rate=0.05, scale_learning_rate=0.01)

Weights = Mapping[str, torch.Tensor]
Tensors = Mapping[str, QuantizedTensor]


def run(weights: Weights, inputs: torch.Tensor) -> torch.Tensor:
    """A block of two linears with a residual connection."""
    return inputs + torch.tanh(inputs @ weights["first.weight"].T) @ weights["second.weight"].T


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "first.weight": torch.randn(COLUMNS, COLUMNS, generator=generator) / 5,
        "second.weight": torch.randn(COLUMNS, COLUMNS, generator=generator) / 5,
    }


def make_pairs(weights: Weights, count: int = 3, real: torch.Tensor | None = None) -> list[BlockPair]:
    """Inputs that have drifted a little from those which the outputs belong to."""
    generator = torch.Generator().manual_seed(1)
    pairs = []
    for _ in range(count):
        original = torch.randn(4, 6, COLUMNS, generator=generator)
        drifted = original + 0.02 * torch.randn(original.shape, generator=generator)
        batch = Batch(torch.zeros(4, 6, dtype=torch.int64), real, sampled=True)
        pairs.append(BlockPair(batch, drifted, run(weights, original)))
    return pairs


def start_from(weights: Weights, scheme: QuantScheme) -> dict[str, QuantizedTensor]:
    return {
        name.removesuffix(".weight"): quantize_rtn(weight, None, scheme) for name, weight in weights.items()
    }


def mean_loss(weights: Weights, tensors: Tensors, pairs: list[BlockPair]) -> float:
    served = {f"{name}.weight": torch.from_numpy(tensor.dequantize()) for name, tensor in tensors.items()}
    losses = [float(relative_loss(run({**weights, **served}, pair.inputs), pair)) for pair in pairs]
    return sum(losses) / len(losses)


def assert_same(found: Tensors, expected: Tensors) -> None:
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name].codes, tensor.codes)
        np.testing.assert_array_equal(found[name].scales, tensor.scales)


def slow_learning(
    weights: Weights, start: Tensors, pair: BlockPair, settings: SignRoundSettings
) -> dict[str, QuantizedTensor]:
    """The same on one batch with all formulas spelled out; the last iterate, not the best."""
    state = {}
    for name, tensor in start.items():
        scales = torch.from_numpy(tensor.scales[:, tensor.column_groups])
        zeros = (
            tensor.scheme.midpoint
            if tensor.zero_points is None
            else torch.from_numpy(tensor.zero_points[:, tensor.column_groups].astype(np.float32))
        )
        codes = torch.from_numpy(tensor.codes.astype(np.float32))
        values = torch.minimum(
            torch.maximum(weights[f"{name}.weight"] / scales + zeros, codes - 0.499), codes + 0.499
        ).clamp(0, tensor.scheme.max_code)
        gains = torch.ones(tensor.scales.shape)
        state[name] = (
            codes,
            zeros,
            values,
            gains,
            [torch.zeros_like(x) for x in (values, values, gains, gains)],
        )
    for step in range(1, settings.iterations + 1):
        leaves, served = {}, {}
        for name, (_, zeros, values, gains, _) in state.items():
            values, gains = values.clone().requires_grad_(), gains.clone().requires_grad_()
            exact = torch.from_numpy(start[name].scales) * gains
            stored = exact + (exact.detach().bfloat16().float() - exact.detach())
            rounded = values + (values.detach().round() - values.detach())
            columns = torch.from_numpy(start[name].column_groups).long()
            served[f"{name}.weight"] = (rounded - zeros) * stored[:, columns]
            leaves[name] = (values, gains)
        relative_loss(run(served, pair.inputs), pair).backward()  # type: ignore[no-untyped-call]
        part = 1 - (step - 1) / settings.iterations
        for name, (codes, _, values, gains, moments) in state.items():
            rates = (settings.learning_rate * part, settings.scale_learning_rate * part)
            for index, (value, leaf, rate) in enumerate(
                zip((values, gains), leaves[name], rates, strict=True)
            ):
                assert leaf.grad is not None
                mean, square = moments[2 * index], moments[2 * index + 1]
                mean.mul_(0.9).add_(0.1 * leaf.grad)
                square.mul_(0.95).add_(0.05 * leaf.grad**2)
                value -= rate * (mean / (1 - 0.9**step)) / ((square / (1 - 0.95**step)).sqrt() + 1e-30)
            highest = (codes + 1).clamp(max=start[name].scheme.max_code)
            values.copy_(torch.minimum(torch.maximum(values, (codes - 1).clamp(min=0)), highest))
            gains.clamp_(0.5, 2)
    return {
        name: replace(
            start[name],
            codes=values.round().numpy().astype(np.uint8),
            scales=(torch.from_numpy(start[name].scales) * gains).bfloat16().float().numpy(),
        )
        for name, (_, _, values, gains, _) in state.items()
    }


@by_name
def test_steps_are_those_of_the_slow_twin(weights: dict[str, torch.Tensor], scheme: QuantScheme) -> None:
    start, pairs = start_from(weights, scheme), make_pairs(weights, 1)
    settings = replace(SETTINGS, iterations=3)
    expected = slow_learning(weights, start, pairs[0], settings)
    assert mean_loss(weights, expected, pairs) < mean_loss(weights, start, pairs)
    assert_same(learn_rounding(run, weights, start, pairs, settings), expected)


@by_name
def test_it_ends_nearer_to_the_original_than_it_began(
    weights: dict[str, torch.Tensor], scheme: QuantScheme
) -> None:
    start, pairs = start_from(weights, scheme), make_pairs(weights)
    learned = learn_rounding(run, weights, start, pairs, SETTINGS)
    assert mean_loss(weights, learned, pairs) < 0.95 * mean_loss(weights, start, pairs)


def test_steps_that_only_harm_leave_the_start(weights: dict[str, torch.Tensor]) -> None:
    start, pairs = start_from(weights, SCHEMES[-1]), make_pairs(weights)
    wild = SignRoundSettings(iterations=4, learning_rate=1, scale_learning_rate=1)
    assert_same(learn_rounding(run, weights, start, pairs, wild), start)


@by_name
def test_codes_move_by_one_at_most_and_grids_stay_storable(
    weights: dict[str, torch.Tensor], scheme: QuantScheme
) -> None:
    start, pairs = start_from(weights, scheme), make_pairs(weights)
    fast = replace(SETTINGS, learning_rate=0.5)
    learned = learn_rounding(run, weights, start, pairs, fast)
    for name, tensor in learned.items():
        moved = tensor.codes.astype(int) - start[name].codes
        assert abs(moved).max() <= 1
        assert tensor.codes.max() <= scheme.max_code
        scales = torch.from_numpy(tensor.scales)
        assert torch.equal(scales.bfloat16().float(), scales)
        if not scheme.symmetric:
            np.testing.assert_array_equal(np.asarray(tensor.zero_points), np.asarray(start[name].zero_points))


def test_the_same_seed_gives_the_same_bytes_and_another_seed_another_order(
    weights: dict[str, torch.Tensor],
) -> None:
    start, pairs = start_from(weights, SCHEMES[0]), make_pairs(weights, 8)
    first, again, other = (
        learn_rounding(run, weights, start, pairs, SETTINGS, seed=seed) for seed in (0, 0, 1)
    )
    assert_same(again, first)
    assert any((other[name].codes != first[name].codes).any() for name in first)


def test_what_it_is_given_is_not_altered(weights: dict[str, torch.Tensor]) -> None:
    start, pairs = start_from(weights, SCHEMES[0]), make_pairs(weights)
    before = {name: weight.clone() for name, weight in weights.items()}
    kept = {
        name: replace(one, codes=one.codes.copy(), scales=one.scales.copy()) for name, one in start.items()
    }
    learn_rounding(run, weights, start, pairs, SETTINGS)
    assert all(torch.equal(weights[name], before[name]) for name in before)
    assert_same(start, kept)


def test_padding_teaches_nothing(weights: dict[str, torch.Tensor]) -> None:
    real = torch.ones(4, 6, dtype=torch.bool)
    real[2:, 3:] = False
    start = start_from(weights, SCHEMES[0])
    pairs = make_pairs(weights, real=real)
    expected = learn_rounding(run, weights, start, pairs, SETTINGS)
    for pair in pairs:
        pair.outputs[2:, 3:] = 1000.0
    assert_same(learn_rounding(run, weights, start, pairs, SETTINGS), expected)


def test_the_loss_counts_each_token_by_its_own_size() -> None:
    wanted = torch.tensor([[[3.0, 4.0], [300.0, 400.0]]])
    batch = Batch(torch.zeros(1, 2, dtype=torch.int64), None, sampled=True)
    output = wanted * torch.tensor([1.1, 0.8])[:, None]
    loss = relative_loss(output, BlockPair(batch, wanted, wanted))
    assert float(loss) == pytest.approx((0.1**2 + 0.2**2) / 2, rel=1e-4)


def test_an_output_that_is_not_finite_is_refused(weights: dict[str, torch.Tensor]) -> None:
    start, pairs = start_from(weights, SCHEMES[0]), make_pairs(weights)
    pairs[0].inputs[0, 0, 0] = float("nan")
    with pytest.raises(ModelError, match="first, second is not finite"):
        learn_rounding(run, weights, start, pairs, SETTINGS)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("iterations", 0),
        ("learning_rate", -0.1),
        ("learning_rate", float("nan")),
        ("scale_learning_rate", 1.5),
    ],
)
def test_settings_out_of_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=field):
        replace(SETTINGS, **{field: value})
