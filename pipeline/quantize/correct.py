"""Aim at the original model's outputs: the weight that a linear should have now that its input has drifted.

With x the input behind the quantized part of the model and y the output that
the original model would want here, the best weight is the ridge regression of y
on x around the given weight W:

    W + E[(y - W x) x^T] (E[x x^T] + lambda I)^-1

This is GPTAQ's asymmetric calibration (Li et al. 2025, arXiv 2504.02692) in
closed form. For linears that write to the residual stream, y also includes what
the stream itself has lost.
"""

from __future__ import annotations

import torch

from gristmill.calibration.drift import GroupStatistics
from gristmill.pipeline.quantize.factor import cholesky_in_place
from gristmill.runtime.errors import ModelError

__all__ = ["corrected_weight"]


def corrected_weight(
    weight: torch.Tensor, statistics: GroupStatistics, damping: float, *, name: str = "weight"
) -> torch.Tensor:
    """The weight, float32 [N, K], to round instead of `weight`.

    `damping` is lambda as a part of the Hessian's mean diagonal. Without drift
    the weight is returned as it is. Raises ModelError, naming the linear, if
    there is no finite solution.
    """
    drift = statistics.drift
    if drift is None:
        return weight
    missing = drift.outputs if drift.inputs is None else weight @ drift.inputs
    assert missing is not None
    damped = drift.hessian.clone()
    damped.diagonal().add_(
        damping * max(float(drift.hessian.diagonal().mean()), torch.finfo(torch.float32).tiny)
    )
    factor, is_definite = cholesky_in_place(damped)
    corrected = torch.cholesky_solve(missing.T, factor).T.add_(weight)
    if not is_definite or not torch.isfinite(corrected).all():
        raise ModelError(
            f"the drift of {name} can't be corrected",
            found=f"a Hessian that is not positive definite with damping {damping:g}",
            hint="add calibration samples or raise the correction's damping",
        )
    return corrected
