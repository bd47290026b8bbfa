"""Hold metrics against the gates of a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.pipeline.validate.metrics import Metrics
from gristmill.pipeline.worst_linears import worst_linears
from gristmill.recipes import Gate
from gristmill.runtime.errors import GateError

__all__ = ["GateResult", "evaluate_gates", "require_gates"]

_LAYERS_NAMED = 5
_REMEDY = (
    "leave them as they are with quantize.skip, or give integer weights more bits "
    "with quantize.overrides or validate.auto_repair"
)


@dataclass(frozen=True, slots=True)
class GateResult:
    """A gate with the value it was held against."""

    gate: Gate
    value: float

    @property
    def passed(self) -> bool:
        """Whether the value keeps the limit."""
        return self.gate.passes(self.value)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {
            "metric": self.gate.metric,
            "limit": self.gate.expression,
            "value": self.value,
            "passed": self.passed,
        }


def evaluate_gates(gates: Sequence[Gate], metrics: Metrics) -> tuple[GateResult, ...]:
    """Each gate with its metric's value, in the order given."""
    return tuple(GateResult(gate, metrics.value(gate.metric)) for gate in gates)


def require_gates(results: Sequence[GateResult], layer_errors: Mapping[str, float]) -> None:
    """Raise GateError naming every failed gate and the layers that cost most.

    `layer_errors` maps a linear's name to the relative error of its output.
    """
    failed = [result for result in results if not result.passed]
    if not failed:
        return
    raise GateError(
        "validation gates failed: " + ", ".join(result.gate.metric for result in failed),
        found=", ".join(f"{result.gate.metric} {result.value:.4g}" for result in failed),
        expected=", ".join(f"{result.gate.metric} {result.gate.expression}" for result in failed),
        hint=_costliest(layer_errors),
    )


def _costliest(layer_errors: Mapping[str, float]) -> str | None:
    if not layer_errors:
        return None
    worst = worst_linears(layer_errors, _LAYERS_NAMED)
    named = ", ".join(f"{name} ({error:.3g})" for name, error in worst)
    return f"layers with the largest output error: {named}; {_REMEDY}"
