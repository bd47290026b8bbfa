"""The walk: the same statistics however it is batched, the same states in stages as in one go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gristmill.calibration.blocks import load_block
from gristmill.calibration.streams import group_names
from gristmill.calibration.walk import BlockWalk
from gristmill.runtime.architectures import plan_model
from gristmill.runtime.errors import ModelError, PromptError
from gristmill.runtime.executors.reference.blocks import (
    causal_attention,
    decoder_block,
    rotary_tables,
)
from gristmill.runtime.model_plan import LayerPlan, LinearPlan, ModelPlan
from gristmill.runtime.sources.base import ModelSource, Tensor
from gristmill.runtime.sources.open import open_source

LENGTHS = (5, 17, 17, 9, 30, 17, 1, 12)
SEQUENCES = [[(7 * row + 3 * column) % 500 for column in range(n)] for row, n in enumerate(LENGTHS)]


@pytest.fixture
def source(tiny_llama: Path) -> ModelSource:
    return open_source(str(tiny_llama), tiny_llama.parent)


@pytest.fixture
def plan(source: ModelSource) -> ModelPlan:
    return plan_model(source.config)


def walk_of(plan: ModelPlan, source: ModelSource, **settings: Any) -> BlockWalk:
    sequences = settings.pop("sequences", SEQUENCES)
    return BlockWalk(plan, source, sequences, compute=settings.pop("compute", "float32"), **settings)


def rounded(weights: Mapping[str, torch.Tensor], linears: tuple[LinearPlan, ...]) -> dict[str, torch.Tensor]:
    """The weights with those of `linears` on a coarse grid."""
    coarse = {linear.weight: (weights[linear.weight] * 8).round() / 8 for linear in linears}
    return {**weights, **coarse}


def inputs_alone(
    plan: ModelPlan, source: ModelSource, sequence: list[int], layers: int
) -> dict[tuple[str, ...], torch.Tensor]:
    """What the linears of layer `layers - 1` read for one sequence on its own."""
    seen: dict[tuple[str, ...], torch.Tensor] = {}

    def keep(group: tuple[LinearPlan, ...], inputs: torch.Tensor) -> None:
        seen[group_names(group)] = inputs[0]

    embedding = torch.from_numpy(source.load(f"{plan.embedding}.weight").astype(np.float32))
    hidden = embedding[torch.tensor([sequence])]
    for layer in plan.layers[:layers]:
        rope = layer.attention.rope
        assert rope is not None
        rotary = rotary_tables(rope, torch.arange(len(sequence)), torch.float32)
        weights = load_block(source, layer, torch.float32)
        hidden = decoder_block(layer, weights, hidden, rotary, causal_attention, keep)
    return seen


@pytest.mark.parametrize("batch_tokens", [1, 40, 1000])
def test_statistics_are_those_of_each_sequence_alone(
    plan: ModelPlan, source: ModelSource, batch_tokens: int
) -> None:
    walk = walk_of(plan, source, batch_tokens=batch_tokens)
    weights = [load_block(source, layer, walk.dtype) for layer in plan.layers]
    walk.advance(plan.layers[0], weights[0])
    found = walk.observe(plan.layers[1], weights[1])
    alone = [inputs_alone(plan, source, sequence, 2) for sequence in SEQUENCES]
    for names, statistics in found.items():
        rows = torch.cat([inputs[names] for inputs in alone])
        assert statistics.tokens == len(rows) == sum(LENGTHS)
        torch.testing.assert_close(statistics.hessian, rows.T @ rows / len(rows), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(statistics.abs_max, rows.abs().amax(0), rtol=1e-4, atol=1e-5)


def test_the_order_of_the_samples_does_not_matter_to_the_bit(plan: ModelPlan, source: ModelSource) -> None:
    layer = plan.layers[0]
    found = []
    for sequences in (SEQUENCES, SEQUENCES[::-1]):
        walk = walk_of(plan, source, sequences=sequences, compute="bfloat16")
        found.append(walk.observe(layer, load_block(source, layer, walk.dtype)))
    for names, statistics in found[0].items():
        assert torch.equal(statistics.hessian, found[1][names].hessian)


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_stages_end_in_the_same_states_as_one_go(plan: ModelPlan, source: ModelSource, compute: str) -> None:
    stepped, resumed = (walk_of(plan, source, compute=compute, batch_tokens=64) for _ in range(2))
    for layer in plan.layers:
        original = load_block(source, layer, stepped.dtype)
        step, current = stepped.enter(layer, original), dict(original)
        for index, group in enumerate(layer.input_groups):
            step.group(index, current)
            current = rounded(current, group)
        step.leave(current)
        resumed.advance(layer, current, original)
    for one, other in zip(stepped.hidden, resumed.hidden, strict=True):
        assert torch.equal(one, other)


def test_a_step_that_asks_for_nothing_moves_on_too(plan: ModelPlan, source: ModelSource) -> None:
    layer = plan.layers[0]
    stepped, advanced = walk_of(plan, source), walk_of(plan, source)
    weights = load_block(source, layer, stepped.dtype)
    stepped.enter(layer, weights).leave(rounded(weights, layer.linears))
    advanced.advance(layer, rounded(weights, layer.linears), weights)
    assert all(map(torch.equal, stepped.hidden, advanced.hidden))


def test_stages_see_what_the_whole_block_sees(plan: ModelPlan, source: ModelSource) -> None:
    walk, layer = walk_of(plan, source), plan.layers[0]
    weights = load_block(source, layer, walk.dtype)
    whole, step = walk.observe(layer, weights), walk.enter(layer, weights)
    for index, group in enumerate(layer.input_groups):
        found = step.group(index, weights).inputs
        torch.testing.assert_close(found.hessian, whole[group_names(group)].hessian)


def test_nothing_quantized_means_no_drift(plan: ModelPlan, source: ModelSource) -> None:
    walk = walk_of(plan, source, sample_every=1)
    for layer in plan.layers[:2]:
        weights = load_block(source, layer, walk.dtype)
        step = walk.enter(layer, weights)
        for index in range(4):
            drift = step.group(index, weights).drift
            assert drift is not None
            gap = drift.inputs if drift.outputs is None else drift.outputs
            assert gap is not None
            assert float(gap.abs().max()) < 1e-4
        step.leave(weights)


def test_drift_is_the_gap_to_the_original_over_the_followed_samples(
    plan: ModelPlan, source: ModelSource
) -> None:
    """Against a twin that runs quantized and original blocks side by side, one sequence at a time."""
    walk = walk_of(plan, source, sample_every=2)
    layer, others = plan.layers[0], plan.layers[0].linears[:4]
    original = load_block(source, layer, walk.dtype)
    weights = rounded(original, others)
    step = walk.enter(layer, original)
    groups = [step.group(index, weights) for index in range(4)]
    ordered = sorted(map(tuple, SEQUENCES), key=lambda s: (len(s), s))[::2]
    twins = [_side_by_side(plan, layer, source, list(s), original, weights) for s in ordered]
    count = sum(map(len, ordered))
    for index in (2, 3):
        drift = groups[index].drift
        assert drift is not None
        rows = torch.cat([twin[index][0] for twin in twins])
        gaps = torch.cat([twin[index][1] for twin in twins])
        found = drift.inputs if index == 2 else drift.outputs
        assert found is not None
        torch.testing.assert_close(drift.hessian, rows.T @ rows / count, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(found, gaps.T @ rows / count, rtol=1e-3, atol=1e-3)


def _side_by_side(
    plan: ModelPlan,
    layer: LayerPlan,
    source: ModelSource,
    sequence: list[int],
    original: Mapping[str, torch.Tensor],
    weights: Mapping[str, torch.Tensor],
) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """For gate and up, and for down: what they read and the gap at that place."""
    embedding = torch.from_numpy(source.load(f"{plan.embedding}.weight").astype(np.float32))
    hidden = embedding[torch.tensor([sequence])]
    rope = layer.attention.rope
    assert rope is not None
    rotary = rotary_tables(rope, torch.arange(len(sequence)), torch.float32)
    reads: list[dict[int, torch.Tensor]] = []
    outputs = []
    for own in (original, weights):
        seen: dict[int, torch.Tensor] = {}

        def keep(
            group: tuple[LinearPlan, ...], inputs: torch.Tensor, into: dict[int, torch.Tensor] = seen
        ) -> None:
            into[layer.input_groups.index(group)] = inputs[0]

        outputs.append(decoder_block(layer, own, hidden, rotary, causal_attention, keep)[0])
        reads.append(seen)
    return {2: (reads[1][2], reads[0][2] - reads[1][2]), 3: (reads[1][3], outputs[0] - outputs[1])}


def test_without_the_original_there_is_no_drift(plan: ModelPlan, source: ModelSource) -> None:
    walk, layer = walk_of(plan, source, follow_original=False), plan.layers[0]
    weights = load_block(source, layer, walk.dtype)
    assert walk.enter(layer, weights).group(0, weights).drift is None


@dataclass(frozen=True, slots=True)
class Damaged:
    """A source with one value of one tensor, or its shape, gone wrong."""

    source: ModelSource
    tensor: str
    value: float | None

    @property
    def name(self) -> str:
        return "damaged"

    @property
    def revision(self) -> str | None:
        return None

    @property
    def config(self) -> Mapping[str, Any]:
        return self.source.config

    def tensor_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self.source.tensor_shapes()

    def load(self, name: str) -> Tensor:
        array = self.source.load(name).copy()
        if name == self.tensor:
            if self.value is None:
                return array[1:]
            array[2] = self.value
        return array

    def side_files(self) -> Mapping[str, bytes]:
        return self.source.side_files()

    def digest(self) -> str:
        return "sha256:0"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("suffix", ["mlp.up_proj.weight", "input_layernorm.weight"])
def test_a_weight_that_is_not_finite_is_refused_by_name(
    plan: ModelPlan, source: ModelSource, suffix: str, value: float
) -> None:
    name = f"model.layers.1.{suffix}"
    with pytest.raises(ModelError, match=rf"tensor {name} of damaged is not finite"):
        load_block(Damaged(source, name, value), plan.layers[1], torch.bfloat16)


def test_a_tensor_of_the_wrong_shape_is_refused_by_name(plan: ModelPlan, source: ModelSource) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    with pytest.raises(ModelError, match=rf"{name}.*found \(63, 128\); expected \(64, 128\)"):
        load_block(Damaged(source, name, None), plan.layers[0], torch.float32)


def test_an_output_that_overflows_is_refused_with_its_layer(plan: ModelPlan, source: ModelSource) -> None:
    walk, layer = walk_of(plan, source), plan.layers[1]
    weights = load_block(source, layer, walk.dtype)
    weights[layer.mlp.down.weight] = torch.full_like(weights[layer.mlp.down.weight], 3e38)
    with pytest.raises(ModelError, match="output of layer 1 "):
        walk.advance(layer, weights)


def test_a_sequence_longer_than_the_model_is_refused(plan: ModelPlan, source: ModelSource) -> None:
    with pytest.raises(PromptError, match="found 30 tokens; expected at most the model's 29"):
        walk_of(replace(plan, max_positions=29), source)
