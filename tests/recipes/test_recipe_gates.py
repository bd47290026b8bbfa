"""Gate expressions mean what they say, and those that can't be meant are refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.recipes.gates import METRICS, Gate, parse_gate
from gristmill.runtime.errors import RecipeError


@pytest.mark.parametrize(
    ("metric", "text", "gate"),
    [
        ("kl_mean", "< 0.20", Gate("kl_mean", "<", 0.2)),
        ("kl_p99", "<=1", Gate("kl_p99", "<=", 1.0)),
        ("top1_agreement", "> 75%", Gate("top1_agreement", ">", 0.75)),
        ("top1_agreement", ">= 0.75", Gate("top1_agreement", ">=", 0.75)),
        ("perplexity", "  <  1.5e1 ", Gate("perplexity", "<", 15.0)),
        ("perplexity_increase", "< 250%", Gate("perplexity_increase", "<", 2.5)),
        ("perplexity_increase", "< -1%", Gate("perplexity_increase", "<", -0.01)),
    ],
)
def test_expressions_are_read(metric: str, text: str, gate: Gate) -> None:
    assert parse_gate(metric, text) == gate


@pytest.mark.parametrize(
    ("metric", "text", "said"),
    [
        ("bleu", "> 1", "found the metric bleu, which is not computed; expected kl_mean, kl_p99"),
        ("kl_mean", "0.2", "expected <, <=, > or >= and a number"),
        ("kl_mean", "== 0.2", "expected <, <=, > or >= and a number"),
        ("kl_mean", "< 0,2", "expected <, <=, > or >= and a number"),
        ("kl_mean", "< nan", "expected <, <=, > or >= and a number"),
        ("kl_mean", "< 1e999", "expected a finite limit"),
        ("kl_mean", "< 20%", "expected a plain number"),
        ("perplexity", "< 25%", "expected a plain number"),
        ("kl_mean", "> 0.2", "expected < or <=, because lower is better"),
        ("top1_agreement", "< 0.75", "expected > or >=, because higher is better"),
        ("kl_mean", "< 0", "expected a limit that some result can keep (the best is 0)"),
        ("top1_agreement", "> 75", "expected a limit that some result can keep (the best is 1)"),
        ("top1_agreement", "> 100%", "expected a limit that some result can keep"),
        ("top1_agreement", ">= 0", "expected a limit above the lowest possible 0"),
        ("perplexity", "< 1", "expected a limit that some result can keep (the best is 1)"),
        ("perplexity_increase", "< 25", "expected a percentage"),
    ],
)
def test_expressions_that_cannot_be_meant_are_refused(metric: str, text: str, said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_gate(metric, text)
    assert said in str(caught.value)


def test_nan_passes_no_gate() -> None:
    assert not any(Gate("kl_mean", operator, 1.0).passes(math.nan) for operator in ("<", "<=", ">", ">="))


@settings(max_examples=60)
@given(st.sampled_from(["<", "<="]), st.floats(1e-6, 50))
def test_an_expression_reads_back_as_the_same_gate(operator: str, limit: float) -> None:
    gate = parse_gate("kl_mean", f"{operator} {limit!r}")
    assert parse_gate("kl_mean", gate.expression) == gate


def test_metrics_are_named_after_themselves() -> None:
    assert all(name == metric.name for name, metric in METRICS.items())
