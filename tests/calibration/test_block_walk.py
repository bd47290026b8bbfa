"""The walk gives the original model's hidden states, and the same bits whichever way a block is passed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from transformers import AutoModelForCausalLM

from gristmill.calibration.batches import make_batches
from gristmill.calibration.blocks import load_block
from gristmill.calibration.drift import GroupStatistics
from gristmill.calibration.statistics import InputStatistics
from gristmill.calibration.walk import BlockWalk
from gristmill.runtime.architectures import plan_model
from gristmill.runtime.executors.reference.blocks import rms_norm, to_torch
from gristmill.runtime.model_plan import LayerPlan, ModelPlan
from gristmill.runtime.sources.base import ModelSource
from gristmill.runtime.sources.hf_folder import HfFolder

Compute = Literal["bfloat16", "float32"]
Statistics = Mapping[tuple[str, ...], InputStatistics]
Weights = Mapping[str, torch.Tensor]

SEQUENCES = tuple(
    tuple((7 * start + 13 * step) % 900 + 3 for step in range(length))
    for start, length in enumerate((9, 4, 17, 9, 1, 12, 9, 6))
)
ONE_BATCH, MANY_BATCHES = 4096, 20


@pytest.fixture(scope="module")
def source(tiny_llama: Path) -> HfFolder:
    return HfFolder(tiny_llama)


@pytest.fixture(scope="module")
def plan(source: HfFolder) -> ModelPlan:
    return plan_model(source.config)


@pytest.fixture(scope="module")
def oracle(tiny_llama: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()


def coarse(weights: Weights) -> dict[str, torch.Tensor]:
    """Weights on a coarse grid: as different from the original's as quantized ones."""
    return {name: (weight.float() * 8).round().div(8).to(weight.dtype) for name, weight in weights.items()}


def pass_in_stages(
    walk: BlockWalk, layer: LayerPlan, weights: Weights, served: Weights
) -> list[GroupStatistics]:
    """Through one block as a build goes: norms first, then the linears of each group once it is known."""
    step = walk.enter(layer, weights)
    linears = {linear.weight for linear in layer.linears}
    current = {name: weights[name] if name in linears else served[name] for name in weights}
    known = []
    for index, group in enumerate(layer.input_groups):
        known.append(step.group(index, current))
        current.update({linear.weight: served[linear.weight] for linear in group})
    step.leave(served)
    return known


def observe_all(
    plan: ModelPlan, source: ModelSource, sequences: Sequence[Sequence[int]], batch_tokens: int
) -> Iterator[Statistics]:
    walk = BlockWalk(plan, source, sequences, compute="float32", batch_tokens=batch_tokens)
    for layer in plan.layers:
        weights = load_block(source, layer, walk.dtype)
        yield walk.observe(layer, weights)
        walk.advance(layer, weights)


def assert_statistics_close(found: Statistics, expected: Statistics) -> None:
    assert found.keys() == expected.keys()
    for group, wanted in expected.items():
        assert found[group].tokens == wanted.tokens
        scale = float(wanted.hessian.abs().max())
        torch.testing.assert_close(found[group].hessian, wanted.hessian, rtol=1e-4, atol=1e-5 * scale)
        torch.testing.assert_close(found[group].abs_mean, wanted.abs_mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found[group].abs_max, wanted.abs_max, rtol=1e-4, atol=1e-5)


def mean_of(parts: Sequence[Statistics]) -> dict[tuple[str, ...], InputStatistics]:
    """Statistics of all parts together, from those of each."""
    together = {}
    for group in parts[0]:
        own = [part[group] for part in parts]
        tokens = sum(one.tokens for one in own)
        together[group] = InputStatistics(
            tokens,
            torch.stack([one.hessian * one.tokens for one in own]).sum(0) / tokens,
            torch.stack([one.abs_mean * one.tokens for one in own]).sum(0) / tokens,
            torch.stack([one.abs_max for one in own]).amax(0),
        )
    return together


def oracle_inputs(oracle: Any, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """The rows that each linear reads in transformers, every sequence run alone."""
    rows: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    hooks = [
        oracle.get_submodule(name).register_forward_pre_hook(
            lambda _, inputs, into=rows[name]: into.append(inputs[0][0])
        )
        for name in names
    ]
    try:
        with torch.no_grad():
            for sequence in SEQUENCES:
                oracle.model(torch.tensor([sequence]))
    finally:
        for hook in hooks:
            hook.remove()
    return {name: torch.cat(parts) for name, parts in rows.items()}


@pytest.mark.parametrize("batch_tokens", [1, MANY_BATCHES, ONE_BATCH])
def test_hidden_states_equal_those_of_transformers(
    plan: ModelPlan, source: HfFolder, oracle: Any, batch_tokens: int
) -> None:
    walk = BlockWalk(plan, source, SEQUENCES, compute="float32", batch_tokens=batch_tokens, sample_every=4)
    batches = make_batches(SEQUENCES, plan.vocab_size, batch_tokens, 4)
    tokens = [row[row > 0].tolist() for batch in batches for row in batch.tokens]  # 0 is but padding here
    with torch.no_grad():
        expected = [
            oracle.model(torch.tensor([ids]), output_hidden_states=True).hidden_states for ids in tokens
        ]

    def compare(index: int, scale: torch.Tensor | None) -> None:
        rows = [row for states in walk.hidden for row in states]
        for row, ids, wanted in zip(rows, tokens, expected, strict=True):
            found = row[: len(ids)]
            found = found if scale is None else rms_norm(found, scale, plan.final_norm.eps)
            torch.testing.assert_close(found, wanted[index][0], rtol=1e-4, atol=1e-4)

    for layer in plan.layers:
        compare(layer.index, None)
        walk.advance(layer, load_block(source, layer, walk.dtype))
    compare(len(plan.layers), to_torch(source.load(f"{plan.final_norm.name}.weight")).float())


def test_statistics_equal_a_loop_over_what_the_linears_of_transformers_read(
    plan: ModelPlan, source: HfFolder, oracle: Any
) -> None:
    inputs = oracle_inputs(oracle, [linear.name for linear in plan.linears])
    for statistics in observe_all(plan, source, SEQUENCES, MANY_BATCHES):
        for group, found in statistics.items():
            for name in group:
                rows = [row.double() for row in inputs[name]]
                hessian = torch.zeros_like(found.hessian, dtype=torch.float64)
                for row in rows:
                    hessian += torch.outer(row, row)
                assert found.tokens == len(rows) == sum(map(len, SEQUENCES))
                atol = 1e-5 * float(found.hessian.abs().max())
                torch.testing.assert_close(found.hessian, (hessian / len(rows)).float(), rtol=1e-3, atol=atol)
                sizes = torch.stack(rows).abs().float()
                torch.testing.assert_close(found.abs_mean, sizes.mean(0), rtol=1e-3, atol=1e-4)
                torch.testing.assert_close(found.abs_max, sizes.amax(0), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("batch_tokens", [1, MANY_BATCHES])
def test_statistics_do_not_depend_on_the_batch_size(
    plan: ModelPlan, source: HfFolder, batch_tokens: int
) -> None:
    expected = observe_all(plan, source, SEQUENCES, ONE_BATCH)
    for found, wanted in zip(observe_all(plan, source, SEQUENCES, batch_tokens), expected, strict=True):
        assert_statistics_close(found, wanted)


def test_statistics_of_padded_sequences_are_those_of_each_alone(plan: ModelPlan, source: HfFolder) -> None:
    alone = [list(observe_all(plan, source, [sequence], ONE_BATCH)) for sequence in SEQUENCES]
    for index, found in enumerate(observe_all(plan, source, SEQUENCES, ONE_BATCH)):
        assert_statistics_close(found, mean_of([layers[index] for layers in alone]))


@pytest.mark.parametrize("batch_tokens", [MANY_BATCHES, ONE_BATCH])
def test_the_order_of_samples_does_not_matter(plan: ModelPlan, source: HfFolder, batch_tokens: int) -> None:
    shuffled = (*SEQUENCES[5:], (), *SEQUENCES[:5][::-1])
    expected = observe_all(plan, source, SEQUENCES, batch_tokens)
    for found, wanted in zip(observe_all(plan, source, shuffled, batch_tokens), expected, strict=True):
        assert_statistics_close(found, wanted)


def test_an_overview_is_of_the_sampled_sequences_and_moves_nothing(plan: ModelPlan, source: HfFolder) -> None:
    walk = BlockWalk(plan, source, SEQUENCES, compute="float32", sample_every=4)
    layer, before = plan.layers[0], walk.hidden
    weights = load_block(source, layer, walk.dtype)
    found = walk.enter(layer, weights).overview(weights)
    sampled = sorted(SEQUENCES, key=lambda sequence: (len(sequence), sequence))[::4]
    assert_statistics_close(found, next(observe_all(plan, source, sampled, ONE_BATCH)))
    assert all(torch.equal(a, b) for a, b in zip(walk.hidden, before, strict=True))


@pytest.mark.parametrize("follow_original", [True, False])
@pytest.mark.parametrize("compute", ["bfloat16", "float32"])
def test_a_block_passed_in_stages_gives_the_bits_of_one_that_is_advanced(
    plan: ModelPlan, source: HfFolder, compute: Compute, follow_original: bool
) -> None:
    built, resumed = (
        BlockWalk(
            plan,
            source,
            SEQUENCES,
            compute=compute,
            batch_tokens=MANY_BATCHES,
            sample_every=2,
            follow_original=follow_original,
        )
        for _ in range(2)
    )
    for layer in plan.layers:
        weights = load_block(source, layer, built.dtype)
        served = coarse(weights)
        pass_in_stages(built, layer, weights, served)
        resumed.advance(layer, served, weights)
        for found, wanted in zip(resumed.hidden, built.hidden, strict=True):
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("batch_tokens", [1, ONE_BATCH])  # without padding and with it
@pytest.mark.parametrize("compute", ["bfloat16", "float32"])
def test_a_resumed_walk_knows_the_bits_of_what_an_unbroken_one_knows(
    plan: ModelPlan, source: HfFolder, compute: Compute, batch_tokens: int
) -> None:
    built, resumed = (
        BlockWalk(plan, source, SEQUENCES, compute=compute, batch_tokens=batch_tokens, sample_every=2)
        for _ in range(2)
    )
    *finished, last = plan.layers
    for layer in finished:
        weights = load_block(source, layer, built.dtype)
        pass_in_stages(built, layer, weights, coarse(weights))
        resumed.advance(layer, coarse(weights), weights)
    weights = load_block(source, last, built.dtype)
    knowledge = [pass_in_stages(walk, last, weights, coarse(weights)) for walk in (built, resumed)]
    for wanted, found in zip(*knowledge, strict=True):
        assert torch.equal(found.inputs.hessian, wanted.inputs.hessian)
        assert torch.equal(found.inputs.abs_mean, wanted.inputs.abs_mean)
        assert found.drift is not None
        assert wanted.drift is not None
        for moment in ("hessian", "inputs", "outputs"):
            one, other = getattr(found.drift, moment), getattr(wanted.drift, moment)
            assert (one is None and other is None) or torch.equal(one, other)


@pytest.mark.parametrize("compute", ["bfloat16", "float32"])
def test_a_block_that_no_group_was_asked_of_is_left_as_by_advance(
    plan: ModelPlan, source: HfFolder, compute: Compute
) -> None:
    entered, advanced = (BlockWalk(plan, source, SEQUENCES, compute=compute) for _ in range(2))
    for layer in plan.layers:
        weights = load_block(source, layer, entered.dtype)
        entered.enter(layer, weights).leave(weights)
        advanced.advance(layer, weights)
    assert all(torch.equal(a, b) for a, b in zip(entered.hidden, advanced.hidden, strict=True))


@pytest.mark.parametrize("compute", ["bfloat16", "float32"])
@pytest.mark.parametrize("staged", [True, False])
def test_pairs_are_the_served_inputs_and_the_originals_outputs(
    plan: ModelPlan, source: HfFolder, compute: Compute, staged: bool
) -> None:
    walk, served, original = (
        BlockWalk(plan, source, SEQUENCES, compute=compute, batch_tokens=MANY_BATCHES, sample_every=1)
        for _ in range(3)
    )
    for layer in plan.layers:
        weights = load_block(source, layer, walk.dtype)
        step = walk.enter(layer, weights)
        if staged:
            for index in range(4):
                step.group(index, weights)
        pairs = step.pairs()
        inputs = served.hidden
        original.advance(layer, weights)
        assert len(pairs) == len(inputs)
        for pair, before, behind in zip(pairs, inputs, original.hidden, strict=True):
            assert torch.equal(pair.inputs, before)
            assert torch.equal(pair.outputs, behind)
        step.leave(coarse(weights))
        served.advance(layer, coarse(weights))
        assert all(torch.equal(a, b) for a, b in zip(walk.hidden, served.hidden, strict=True))


def test_pairs_are_of_the_sequences_whose_original_is_followed(plan: ModelPlan, source: HfFolder) -> None:
    walk = BlockWalk(plan, source, SEQUENCES, batch_tokens=MANY_BATCHES, sample_every=4)
    layer = plan.layers[0]
    pairs = walk.enter(layer, load_block(source, layer, walk.dtype)).pairs()
    assert sum(len(pair.inputs) for pair in pairs) == len(SEQUENCES) // 4


def test_groups_see_what_the_quantized_ones_before_them_give(plan: ModelPlan, source: HfFolder) -> None:
    walk = BlockWalk(plan, source, SEQUENCES, compute="float32")
    layer = plan.layers[0]
    weights = load_block(source, layer, walk.dtype)
    served = coarse(weights)
    expected = walk.observe(layer, served)
    known = pass_in_stages(walk, layer, weights, served)
    found = dict(zip(expected, (one.inputs for one in known), strict=True))
    assert_statistics_close(found, expected)


def test_drift_is_the_gap_to_the_original_over_the_sample(plan: ModelPlan, source: HfFolder) -> None:
    """Behind one coarse block, the next norm's gap equals that of two separate walks."""
    walk = BlockWalk(plan, source, SEQUENCES, compute="float32", sample_every=2)
    sampled = sorted(SEQUENCES, key=lambda sequence: (len(sequence), sequence))[::2]
    first, second = plan.layers[:2]
    weights, later = (load_block(source, layer, walk.dtype) for layer in (first, second))
    pass_in_stages(walk, first, weights, coarse(weights))
    drift = walk.enter(second, later).group(0, later).drift

    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    for sequence in sampled:
        normed = []
        for passed in (coarse(weights), weights):
            alone = BlockWalk(plan, source, [sequence], compute="float32")
            alone.advance(first, passed)
            scale = later[f"{second.input_norm.name}.weight"]
            normed.append(rms_norm(alone.hidden[0][0], scale, second.input_norm.eps))
        pairs += zip(*normed, strict=True)
    assert drift is not None
    assert drift.inputs is not None
    hessian = torch.stack([torch.outer(x, x) for x, _ in pairs]).mean(0)
    gap = torch.stack([torch.outer(original - x, x) for x, original in pairs]).mean(0)
    torch.testing.assert_close(drift.hessian, hessian, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(drift.inputs, gap, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch_tokens", [1, ONE_BATCH])
def test_original_weights_do_not_drift(plan: ModelPlan, source: HfFolder, batch_tokens: int) -> None:
    walk = BlockWalk(plan, source, SEQUENCES, compute="float32", batch_tokens=batch_tokens)
    for layer in plan.layers:
        weights = load_block(source, layer, walk.dtype)
        for one in pass_in_stages(walk, layer, weights, weights):
            assert one.drift is not None
            gap = one.drift.inputs if one.drift.outputs is None else one.drift.outputs
            assert gap is not None
            assert float(gap.abs().max()) <= 1e-5 * float(one.drift.hessian.abs().max())


def test_there_is_no_drift_without_an_original(plan: ModelPlan, source: HfFolder) -> None:
    walk = BlockWalk(plan, source, SEQUENCES, compute="float32", follow_original=False)
    weights = load_block(source, plan.layers[0], walk.dtype)
    assert all(one.drift is None for one in pass_in_stages(walk, plan.layers[0], weights, weights))
