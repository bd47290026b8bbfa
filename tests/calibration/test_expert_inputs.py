"""Each expert is measured over its own tokens; if they are too few, others of its layer count too."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from gristmill.calibration.batches import make_batches
from gristmill.calibration.drift import GroupStatistics
from gristmill.calibration.step import BlockStep
from gristmill.calibration.streams import Streams
from gristmill.runtime.executors.reference.linears import linear
from gristmill.runtime.executors.reference.mlp import gated_input
from gristmill.runtime.model_plan import LinearPlan, MoePlan
from tests.pipeline.small_block import block_output, random_weights, small_layer

LAYER = small_layer("qwen2_moe")
assert isinstance(LAYER.mlp, MoePlan)
PLAN: MoePlan = LAYER.mlp
LENGTHS = (9, 12, 5, 12, 7)
Weights = Mapping[str, torch.Tensor]


def streams(*, min_tokens: int, follow: bool = True) -> Streams:
    """Random states of sequences of several lengths, two at a time, so that shorter ones are padded."""
    batches = make_batches([[1] * length for length in LENGTHS], 50, 24, 2)
    generator = torch.Generator().manual_seed(3)
    hidden = [torch.randn(*batch.tokens.shape, 64, generator=generator) for batch in batches]
    original = [
        states * 1.1 if follow and batch.sampled else None
        for batch, states in zip(batches, hidden, strict=True)
    ]
    return Streams(batches, hidden, original, {}, 0, min_tokens)


def coarse(weights: Weights) -> dict[str, torch.Tensor]:
    """The block with every linear on a coarse grid; routers and norms are as they were."""
    rounded = {part.weight: (weights[part.weight] * 16).round() / 16 for part in LAYER.linears}
    return {**weights, **rounded}


def staged(own: Streams, weights: Weights, served: Weights) -> tuple[list[GroupStatistics], BlockStep]:
    step, current = BlockStep(own, LAYER, weights), dict(weights)
    known = []
    for index, group in enumerate(LAYER.input_groups):
        known.append(step.group(index, current))
        current.update({part.weight: served[part.weight] for part in group})
    return known, step


def normed_tokens(own: Streams, weights: Weights) -> torch.Tensor:
    """What the experts read: each token by itself, behind the attention of `weights`."""
    rows = []
    for batch, hidden in zip(own.batches, own.hidden, strict=True):
        seen: dict[tuple[LinearPlan, ...], torch.Tensor] = {}
        block_output(LAYER, weights, hidden, seen.__setitem__)
        rows.append(batch.rows(seen[PLAN.readers]))
    return torch.cat(rows)


def tokens_of(expert: int, rows: torch.Tensor, weights: Weights) -> torch.Tensor:
    """The slow twin of routing: token by token."""
    sent = []
    for row in rows:
        scores = linear(PLAN.router, weights, row).tolist()
        if sorted(scores, reverse=True).index(scores[expert]) < PLAN.top_k:
            sent.append(row)
    return torch.stack(sent)


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return random_weights(LAYER)


@pytest.mark.parametrize("expert", range(4))
def test_an_expert_is_measured_over_the_tokens_that_are_sent_to_it(
    expert: int, weights: dict[str, torch.Tensor]
) -> None:
    served = coarse(weights)
    known, _ = staged(streams(min_tokens=1), weights, served)
    rows = tokens_of(expert, normed_tokens(streams(min_tokens=1), served), weights)
    gate, down = known[2 + 2 * expert], known[3 + 2 * expert]
    assert gate.routed == down.routed == gate.inputs.tokens == len(rows)
    torch.testing.assert_close(gate.inputs.hessian, rows.T @ rows / len(rows), atol=1e-4, rtol=1e-4)
    gated = gated_input(PLAN.experts[expert], served, rows)
    torch.testing.assert_close(down.inputs.hessian, gated.T @ gated / len(rows), atol=1e-4, rtol=1e-4)


def test_all_tokens_of_the_layer_stand_for_those_that_an_expert_lacks(
    weights: dict[str, torch.Tensor],
) -> None:
    served, minimum = coarse(weights), 2 * sum(LENGTHS)
    whole = normed_tokens(streams(min_tokens=1), served)
    known, _ = staged(streams(min_tokens=minimum), weights, served)
    for expert, group in enumerate(known[2:10:2]):
        own = tokens_of(expert, whole, weights)
        assert group.routed == len(own)
        share = len(own) / minimum
        expected = share * own.T @ own / len(own) + (1 - share) * whole.T @ whole / len(whole)
        torch.testing.assert_close(group.inputs.hessian, expected, atol=1e-4, rtol=1e-4)


def test_an_expert_without_tokens_is_measured_over_all_of_its_layer(
    weights: dict[str, torch.Tensor],
) -> None:
    router = weights[PLAN.router.weight].clone()
    router[1] = 0
    router[1, 0] = -1e6
    shut = {**weights, PLAN.router.weight: router}
    own = streams(min_tokens=1)
    own.hidden[:] = [states.index_fill(-1, torch.tensor([0]), 50.0) for states in own.hidden]
    gate = staged(own, shut, coarse(shut))[0][4]
    assert (gate.routed, gate.inputs.tokens) == (0, sum(LENGTHS))


def test_the_shared_expert_reads_every_token(weights: dict[str, torch.Tensor]) -> None:
    known, _ = staged(streams(min_tokens=1), weights, coarse(weights))
    assert [(group.routed, group.inputs.tokens) for group in known[-2:]] == [(None, sum(LENGTHS))] * 2


def test_an_expert_learns_how_far_its_input_is_from_the_originals(weights: dict[str, torch.Tensor]) -> None:
    followed, _ = staged(streams(min_tokens=10**6), weights, coarse(weights))
    alone, _ = staged(streams(min_tokens=10**6, follow=False), weights, coarse(weights))
    assert all(group.drift is not None and group.drift.inputs is not None for group in followed[2:])
    assert all(group.drift is None for group in alone)


def test_the_samples_leave_the_block_as_if_it_were_run_at_once(weights: dict[str, torch.Tensor]) -> None:
    own, served = streams(min_tokens=1), coarse(weights)
    expected = [block_output(LAYER, served, hidden) for hidden in own.hidden]
    _, step = staged(own, weights, served)
    step.leave(served)
    for found, wanted in zip(own.hidden, expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_an_overview_has_one_entry_for_each_place_where_a_scale_can_be_folded(
    weights: dict[str, torch.Tensor],
) -> None:
    own = streams(min_tokens=1)
    seen = own.observe(LAYER, weights, sample=False)
    assert list(seen) == [tuple(part.name for part in group.linears) for group in LAYER.scaling_groups]
    readers = seen[tuple(part.name for part in PLAN.readers)]
    assert readers.tokens == sum(LENGTHS)


def test_each_expert_can_be_observed_by_itself(weights: dict[str, torch.Tensor]) -> None:
    seen = streams(min_tokens=1).observe(LAYER, weights, sample=False, each_expert=True)
    assert {tuple(part.name for part in group) for group in LAYER.input_groups} <= set(seen)
