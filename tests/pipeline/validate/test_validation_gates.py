"""Gates hold or fail by their metric, and a failure names what to look at."""

from __future__ import annotations

import pytest

from gristmill.pipeline.validate.gates import evaluate_gates, require_gates
from gristmill.pipeline.validate.metrics import Metrics
from gristmill.recipes import METRICS
from gristmill.recipes.gates import parse_gate
from gristmill.runtime.errors import GateError

METRICS_FOUND = Metrics(
    positions=100, perplexity_base=20.0, perplexity=24.0, kl_mean=0.15, kl_p99=1.2, top1_agreement=0.8
)
ERRORS = {f"layer{index}": index / 100 for index in range(10)}


@pytest.mark.parametrize(
    ("metric", "limit", "passed"),
    [
        ("kl_mean", "< 0.2", True),
        ("kl_mean", "< 0.15", False),
        ("kl_mean", "<= 0.15", True),
        ("kl_p99", "< 1", False),
        ("top1_agreement", "> 75%", True),
        ("top1_agreement", ">= 0.81", False),
        ("perplexity", "< 25", True),
        ("perplexity_increase", "< 19%", False),
        ("perplexity_increase", "< 21%", True),
    ],
)
def test_a_gate_is_held_against_its_metric(metric: str, limit: str, passed: bool) -> None:
    (result,) = evaluate_gates([parse_gate(metric, limit)], METRICS_FOUND)
    assert result.passed is passed


def test_every_metric_of_a_recipe_is_computed() -> None:
    assert all(isinstance(METRICS_FOUND.value(metric), float) for metric in METRICS)


def test_gates_that_hold_raise_nothing() -> None:
    require_gates(evaluate_gates([parse_gate("kl_mean", "< 0.2")], METRICS_FOUND), ERRORS)


def test_failed_gates_and_the_costliest_layers_are_named() -> None:
    gates = [parse_gate("kl_mean", "< 0.1"), parse_gate("perplexity", "< 30"), parse_gate("kl_p99", "< 1")]
    with pytest.raises(GateError) as caught:
        require_gates(evaluate_gates(gates, METRICS_FOUND), ERRORS)
    assert str(caught.value) == (
        "validation gates failed: kl_mean, kl_p99; found kl_mean 0.15, kl_p99 1.2; "
        "expected kl_mean < 0.1, kl_p99 < 1.0; layers with the largest output error: layer9 (0.09), "
        "layer8 (0.08), layer7 (0.07), layer6 (0.06), layer5 (0.05); "
        "leave them as they are with quantize.skip, or give integer weights more bits "
        "with quantize.overrides or validate.auto_repair"
    )
