"""Statistics of inputs that a test makes up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gristmill.calibration.statistics import InputStatistics


@pytest.fixture(scope="session")
def statistics_of() -> Callable[[torch.Tensor], InputStatistics]:
    """What calibration would know about input rows [T, K]."""

    def measure(rows: torch.Tensor) -> InputStatistics:
        exact = rows.double()
        hessian = (exact.T @ exact / len(rows)).float()
        return InputStatistics(len(rows), hessian, rows.abs().mean(0), rows.abs().amax(0))

    return measure
