"""What a step takes is learned from steps, whatever the clock does."""

from __future__ import annotations

import random

import pytest

from gristmill.runtime.core.cost_model import CostModel
from gristmill.runtime.core.step_plan import StepWork


def true_seconds(work: StepWork, speed: float = 1.0) -> float:
    """A processor on which attention to long contexts costs more than all else."""
    return (
        4e-3
        + 4e-4 * work.prefill_tokens
        + 5e-7 * work.prefill_pairs
        + 3e-4 * work.decodes
        + 1e-6 * work.context_tokens
    ) / speed


def random_work(choose: random.Random) -> StepWork:
    tokens = choose.choice([0, 0, 16, 64, 100, 400])
    decodes = choose.randint(0 if tokens else 1, 16)
    start = choose.randint(0, 3000)
    return StepWork(tokens, tokens * (start + tokens / 2), decodes, decodes * choose.randint(1, 3000))


def trained(steps: int, *, speed: float = 1.0, stall: float = 1.0, every: int = 10**9) -> CostModel:
    """A model that saw random steps, each `every`th of them `stall` times as long as it should be."""
    choose, model = random.Random(1), CostModel()
    for step in range(1, steps + 1):
        work = random_work(choose)
        noise = choose.uniform(0.9, 1.1) * (stall if step % every == 0 else 1.0)
        model.observe(work, true_seconds(work, speed) * noise)
    return model


def worst_ratio(model: CostModel, speed: float = 1.0) -> float:
    """The largest factor between prediction and truth over steps that it has not seen."""
    choose = random.Random(2)
    ratios = []
    for _ in range(200):
        work = random_work(choose)
        ratio = model.predict(work) / true_seconds(work, speed)
        ratios.append(max(ratio, 1 / ratio))
    return max(ratios)


def test_a_few_dozen_steps_teach_it_steps_that_it_has_not_seen() -> None:
    assert worst_ratio(trained(60)) < 1.5
    assert worst_ratio(trained(500)) < 1.25


@pytest.mark.parametrize("speed", [0.02, 100.0])
def test_a_machine_far_from_the_first_guess_is_learned_as_well(speed: float) -> None:
    assert worst_ratio(trained(500, speed=speed), speed) < 1.5


def test_before_any_step_it_expects_rather_too_much() -> None:
    work = StepWork(prefill_tokens=64, prefill_pairs=2048, decodes=4, context_tokens=400)
    assert CostModel().predict(work) > true_seconds(work)


@pytest.mark.parametrize("stall", [10.0, 1000.0, 0.0, -1.0])
def test_stalls_and_clocks_that_jump_hardly_matter(stall: float) -> None:
    assert worst_ratio(trained(500, stall=stall, every=25)) < 1.5


def test_a_machine_that_becomes_slow_is_believed_within_some_dozens_of_steps() -> None:
    choose, model = random.Random(3), trained(300)
    for _ in range(100):
        work = random_work(choose)
        model.observe(work, true_seconds(work, speed=0.2))
    assert worst_ratio(model, speed=0.2) < 1.5


def late_share(noise: float) -> float:
    """The share of steps that take longer than was allowed for, on a machine with so much noise."""
    choose, model, late = random.Random(5), CostModel(), 0
    for step in range(600):
        work = StepWork(100, 100 * choose.randint(50, 3000), 4, 2000)
        seconds = true_seconds(work) * choose.uniform(1 - noise, 1 + noise)
        late += step >= 100 and seconds > model.allow(work)
        model.observe(work, seconds)
    return late / 500


@pytest.mark.parametrize("noise", [0.1, 0.3, 0.6])
def test_most_steps_end_within_what_was_allowed_however_restless_the_machine(noise: float) -> None:
    assert late_share(noise) < 0.3


def test_on_a_quiet_machine_what_is_allowed_is_what_is_predicted() -> None:
    choose, model = random.Random(6), CostModel()
    for _ in range(400):
        work = random_work(choose)
        model.observe(work, true_seconds(work))
    work = random_work(choose)
    assert model.allow(work) == pytest.approx(model.predict(work), rel=0.02)


def test_no_work_ever_costs_less_than_nothing() -> None:
    choose, model = random.Random(4), CostModel()
    for _ in range(300):
        model.observe(random_work(choose), choose.uniform(1e-4, 1.0))
        assert min(model.weights) >= 0


@pytest.mark.parametrize("seed", range(8))
def test_times_that_are_noise_alone_leave_every_step_a_cost(seed: int) -> None:
    """A machine so busy that one step takes a thousand times as long as the same step before it."""
    choose, model = random.Random(seed), CostModel()
    for _ in range(400):
        work = StepWork(choose.randint(1, 64), choose.uniform(0, 4096), choose.randint(0, 1), 0, 0)
        model.observe(work, 10 ** choose.uniform(-6, 1))
        assert model.predict(StepWork()) > 0


def test_what_no_step_shows_keeps_its_first_guess() -> None:
    model = CostModel()
    first = model.weights
    for _ in range(200):
        model.observe(StepWork(decodes=4, context_tokens=100), 8e-3)
    assert model.weights[1] == pytest.approx(first[1])
    assert model.predict(StepWork(decodes=4, context_tokens=100)) == pytest.approx(8e-3, rel=0.05)


def test_a_context_that_grows_is_extrapolated() -> None:
    """A long prompt in chunks, each predicted before it is seen."""
    model = trained(40)
    for start in range(0, 4000, 100):
        work = StepWork(100, 100 * (start + 50), 1, 500)
        assert model.predict(work) < 1.5 * true_seconds(work)
        assert model.predict(work) > true_seconds(work) / 1.5
        model.observe(work, true_seconds(work))


def test_a_long_answer_does_not_make_it_forget_what_prompts_take() -> None:
    model = trained(100, speed=0.1)
    for context in range(1000):
        work = StepWork(decodes=1, context_tokens=context)
        model.observe(work, true_seconds(work, speed=0.1))
    assert worst_ratio(model, speed=0.1) < 1.5
