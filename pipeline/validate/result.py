"""What validation found, and its JSON form in manifests and `inspect --json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gristmill.pipeline.validate.gates import GateResult
from gristmill.pipeline.validate.metrics import Metrics
from gristmill.pipeline.validate.worst import Passage

__all__ = ["DataResult", "ValidationResult"]


@dataclass(frozen=True, slots=True)
class DataResult:
    """One held-out data set. `overlap` is the share of its tokens in 16-grams that calibration has seen."""

    name: str
    windows: int
    metrics: Metrics
    overlap: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {
            "name": self.name,
            "windows": self.windows,
            "tokens": self.metrics.positions,
            **_metrics_dict(self.metrics),
            "calibration_overlap": self.overlap,
        }


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """All data sets together, each by itself, the gates, and where the two models part most."""

    metrics: Metrics
    overlap: float
    data: tuple[DataResult, ...]
    gates: tuple[GateResult, ...] = ()
    worst: tuple[Passage, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every gate holds."""
        return all(result.passed for result in self.gates)

    def to_dict(self, tasks: Mapping[str, float] | None = None) -> dict[str, Any]:
        """One engine's `validation` in the public contract, with a row for each data set and gate."""
        return {
            **_metrics_dict(self.metrics),
            "tasks": dict(tasks or {}),
            "calibration_overlap": self.overlap,
            "tokens": self.metrics.positions,
            "data": [row.to_dict() for row in self.data],
            "gates": [gate.to_dict() for gate in self.gates],
            "worst": [asdict(passage) for passage in self.worst],
        }


def _metrics_dict(metrics: Metrics) -> dict[str, Any]:
    return {
        "perplexity": {"base": metrics.perplexity_base, "quantized": metrics.perplexity},
        "kl": {"mean": metrics.kl_mean, "p99": metrics.kl_p99},
        "top1_agreement": metrics.top1_agreement,
    }
