"""How far a partly quantized model has drifted from the original, as seen by one group of linears.

While a model is quantized layer by layer, the input of each next linear is no
longer the original's. A linear that knows the gap can make up for it: among
all weights it may take the one whose outputs are nearest to the original's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gristmill.calibration.statistics import InputStatistics

__all__ = ["Drift", "GroupStatistics"]


@dataclass(frozen=True, slots=True, eq=False)
class Drift:
    """Moments of the input x of a group of linears, over the samples whose original is followed.

    hessian  float32 [K, K], mean of x x^T over these samples

    and one of the cross moments

    inputs   float32 [K, K], mean of (x_original - x) x^T: the linears should
             give what they gave for the original input
    outputs  float32 [N, K], mean of (y - W x) x^T: y is the output that brings
             the residual stream back to the original's, W x the present one
    """

    hessian: torch.Tensor
    inputs: torch.Tensor | None = None
    outputs: torch.Tensor | None = None

    def __post_init__(self) -> None:
        assert (self.inputs is None) != (self.outputs is None)


@dataclass(frozen=True, slots=True, eq=False)
class GroupStatistics:
    """What is known about one of `layer.input_groups`.

    drift   None if no original is followed
    routed  tokens that the router sent to the expert whose linears these are; None for those that read all
    """

    inputs: InputStatistics
    drift: Drift | None = None
    routed: int | None = None
