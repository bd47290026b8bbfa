"""Gates: the limits that a recipe sets on what quantization may cost."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from gristmill.runtime.errors import RecipeError

__all__ = ["METRICS", "Gate", "Metric", "parse_gate", "parse_task_gate"]

Operator = Literal["<", "<=", ">", ">="]

_EXPRESSION = re.compile(
    r"\s*(?P<operator><=|>=|<|>)\s*(?P<number>-?\d+(\.\d*)?([eE][-+]?\d+)?)\s*(?P<percent>%?)\s*"
)


@dataclass(frozen=True, slots=True)
class Metric:
    """A number that validation computes, with the range it can take.

    `percent` says whether a limit may be written in percent. `plain_limit` is
    the largest limit believed without a percent sign: a perplexity increase
    of "< 25" is far more likely a forgotten sign than 2,500 %.
    """

    name: str
    meaning: str
    better: Literal["lower", "higher"]
    lowest: float
    highest: float = math.inf
    percent: bool = False
    plain_limit: float = math.inf


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        metric.name: metric
        for metric in (
            Metric("kl_mean", "mean KL divergence from the original, in nats", "lower", 0.0),
            Metric("kl_p99", "99th percentile of the KL divergence, in nats", "lower", 0.0),
            Metric(
                "top1_agreement",
                "share of positions with the original's most likely token",
                "higher",
                0.0,
                1.0,
                percent=True,
            ),
            Metric("perplexity", "perplexity of the quantized model", "lower", 1.0),
            Metric(
                "perplexity_increase",
                "relative increase of perplexity over the original",
                "lower",
                -1.0,
                percent=True,
                plain_limit=1.0,
            ),
        )
    }
)


@dataclass(frozen=True, slots=True)
class Gate:
    """A metric must compare with a limit: `kl_mean < 0.2`; shares are fractions, never percent."""

    metric: str
    operator: Operator
    limit: float

    def passes(self, value: float) -> bool:
        """Whether `value` keeps the limit; NaN never does."""
        return {
            "<": value < self.limit,
            "<=": value <= self.limit,
            ">": value > self.limit,
            ">=": value >= self.limit,
        }[self.operator]

    @property
    def expression(self) -> str:
        """The gate as a recipe writes it, without the metric."""
        return f"{self.operator} {self.limit!r}"


def parse_gate(name: str, expression: str) -> Gate:
    """The gate that `expression`, such as `< 0.20` or `> 75%`, puts on the metric `name`.

    Raises RecipeError for a metric that is not computed, for an expression
    that can't be read, for a limit in the wrong direction, and for one that
    every result or no result would keep.
    """
    metric = METRICS.get(name)
    if metric is None:
        raise RecipeError(
            "gate", found=f"the metric {name}, which is not computed", expected=", ".join(METRICS)
        )
    return _parse(metric, expression)


def parse_task_gate(task: str, expression: str) -> Gate:
    """The gate, such as `> -2%`, on how a task's main metric differs from the original's: as `parse_gate`."""
    meaning = "difference of the main metric to the original's"
    return _parse(Metric(f"tasks.{task}", meaning, "higher", -1.0, 1.0, percent=True), expression)


def _parse(metric: Metric, expression: str) -> Gate:
    match = _EXPRESSION.fullmatch(expression)
    if match is None:
        raise RecipeError(
            f"gate {metric.name}",
            found=f'text "{expression}"',
            expected=f'<, <=, > or >= and a number, such as "{_example(metric)}"',
        )
    limit = float(match["number"])
    _require(math.isfinite(limit), metric, expression, "a finite limit")
    if match["percent"]:
        _require(metric.percent, metric, expression, "a plain number: this metric is not a share")
        limit /= 100
    else:
        _require(
            limit <= metric.plain_limit, metric, expression, f'a percentage, such as "{_example(metric)}"'
        )
    gate = Gate(metric.name, match["operator"], limit)  # type: ignore[arg-type]
    _check_limit(gate, metric, expression)
    return gate


def _check_limit(gate: Gate, metric: Metric, expression: str) -> None:
    lower_is_better = metric.better == "lower"
    direction = "< or <=" if lower_is_better else "> or >="
    _require(
        gate.operator.startswith("<") == lower_is_better,
        metric,
        expression,
        f"{direction}, because {metric.better} is better",
    )
    best, worst = (metric.lowest, metric.highest) if lower_is_better else (metric.highest, metric.lowest)
    _require(
        gate.passes(best), metric, expression, f"a limit that some result can keep (the best is {best:g})"
    )
    _require(not gate.passes(worst), metric, expression, f"a limit above the lowest possible {worst:g}")


def _require(holds: bool, metric: Metric, expression: str, expected: str) -> None:
    if not holds:
        raise RecipeError(f"gate {metric.name}", found=f'"{expression}"', expected=expected)


def _example(metric: Metric) -> str:
    if metric.name == "perplexity_increase":
        return "< 25%"
    if metric.name == "perplexity":
        return "< 30"
    if metric.name.startswith("tasks."):
        return "> -2%"
    return "< 0.20" if metric.better == "lower" else "> 0.75"
