"""The hidden states of all samples in front of one decoder block."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gristmill.calibration.batches import Batch
from gristmill.calibration.observers import InputObserver, require_finite
from gristmill.calibration.statistics import InputStatistics
from gristmill.runtime.executors.reference.blocks import (
    Attend,
    Observe,
    Rotary,
    Weights,
    causal_attention,
    decoder_block,
    rotary_tables,
)
from gristmill.runtime.model_plan import LayerPlan, LinearPlan

__all__ = ["Streams", "group_name", "group_names", "run_block"]


@dataclass(slots=True, eq=False)
class Streams:
    """What flows through the blocks, one [B, T, hidden] tensor for each batch.

    hidden    from the blocks as they will be served
    original  from the original model's blocks; None for batches where it isn't followed
    """

    batches: tuple[Batch, ...]
    hidden: list[torch.Tensor]
    original: list[torch.Tensor | None]

    def observe(
        self, layer: LayerPlan, weights: Weights, *, sample: bool
    ) -> dict[tuple[str, ...], InputStatistics]:
        """Statistics of all input groups, over all batches or the sampled ones."""
        observers = {
            group: InputObserver(group_name(group), group[0].in_features) for group in layer.input_groups
        }
        for batch, hidden in zip(self.batches, self.hidden, strict=True):
            if batch.sampled or not sample:
                run_block(layer, weights, hidden, _recorder(observers, batch))
        return {group_names(group): observer.statistics() for group, observer in observers.items()}


def run_block(
    layer: LayerPlan,
    weights: Weights,
    hidden: torch.Tensor,
    observe: Observe | None = None,
    attend: Attend = causal_attention,
) -> torch.Tensor:
    """One block over whole sequences [B, T, hidden] that start at position 0.

    Raises ModelError, naming the layer, if an output is NaN or infinite.
    """
    output = decoder_block(layer, weights, hidden, _rotary(layer, hidden), attend, observe)
    require_finite(output, f"the output of layer {layer.index} ({layer.mlp.down.name})")
    return output


def group_names(group: tuple[LinearPlan, ...]) -> tuple[str, ...]:
    """The names of a group's linears, the group's key in every mapping."""
    return tuple(linear.name for linear in group)


def group_name(group: tuple[LinearPlan, ...]) -> str:
    """A group's linears in one phrase, for messages."""
    return ", ".join(group_names(group))


def _rotary(layer: LayerPlan, hidden: torch.Tensor) -> Rotary | None:
    rope = layer.attention.rope
    return None if rope is None else rotary_tables(rope, torch.arange(hidden.shape[1]), hidden.dtype)


def _recorder(observers: dict[tuple[LinearPlan, ...], InputObserver], batch: Batch) -> Observe:
    def record(group: tuple[LinearPlan, ...], inputs: torch.Tensor) -> None:
        observers[group].update(batch.rows(inputs))

    return record
