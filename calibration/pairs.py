"""What a method that learns is given of a block: its inputs, and the outputs it should have."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gristmill.calibration.batches import Batch

__all__ = ["BlockPair"]


@dataclass(frozen=True, slots=True, eq=False)
class BlockPair:
    """One batch in front of a block and behind the original's.

    batch    tells real tokens from padding
    inputs   [B, T, hidden], from the blocks as they will be served
    outputs  [B, T, hidden], what the original block gave for the original's states
    """

    batch: Batch
    inputs: torch.Tensor
    outputs: torch.Tensor
