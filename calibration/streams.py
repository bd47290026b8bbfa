"""The hidden states of all samples in front of one decoder block."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gristmill.calibration.batches import Batch
from gristmill.calibration.observers import InputObserver, require_finite
from gristmill.calibration.statistics import InputStatistics
from gristmill.runtime.executors.reference.blocks import (
    Attend,
    Rotary,
    causal_attention,
    decoder_block,
    rotary_tables,
)
from gristmill.runtime.executors.reference.linears import UNQUANTIZED, Observe, Schemes, Weights
from gristmill.runtime.model_plan import LayerPlan, LinearPlan

__all__ = ["Streams", "group_name", "group_names", "run_block"]


@dataclass(slots=True, eq=False)
class Streams:
    """What flows through the blocks, one [B, T, hidden] tensor for each batch.

    hidden    from the blocks as they will be served, inputs quantized as `schemes` say
    original  from the original model's blocks; None for batches where it isn't followed
    keep_rows how many rows of every input statistics hold, about
    """

    batches: tuple[Batch, ...]
    hidden: list[torch.Tensor]
    original: list[torch.Tensor | None]
    schemes: Schemes
    keep_rows: int

    def observe(
        self, layer: LayerPlan, weights: Weights, *, sample: bool
    ) -> dict[tuple[str, ...], InputStatistics]:
        """Statistics of all input groups, none quantized, over all batches or the sampled ones."""
        every = self.keep_every(sample=sample)
        observers = {
            group: InputObserver(group_name(group), group[0].in_features, keep_every=every)
            for group in layer.input_groups
        }
        for batch, hidden in zip(self.batches, self.hidden, strict=True):
            if batch.sampled or not sample:
                run_block(layer, weights, hidden, _recorder(observers, batch))
        return {group_names(group): observer.statistics() for group, observer in observers.items()}

    def keep_every(self, *, sample: bool) -> int:
        """How far apart kept rows stand: an odd number, which meets all positions of even sequences."""
        if self.keep_rows == 0:
            return 0
        batches = [batch for batch in self.batches if batch.sampled or not sample]
        return sum(batch.num_tokens for batch in batches) // self.keep_rows | 1


def run_block(
    layer: LayerPlan,
    weights: Weights,
    hidden: torch.Tensor,
    observe: Observe | None = None,
    attend: Attend = causal_attention,
    schemes: Schemes = UNQUANTIZED,
) -> torch.Tensor:
    """One block over whole sequences [B, T, hidden] that start at position 0.

    Raises ModelError, naming the layer, if an output is NaN or infinite.
    """
    output = decoder_block(layer, weights, hidden, _rotary(layer, hidden), attend, observe, schemes)
    require_finite(output, f"the output of layer {layer.index} ({layer.linears[-1].name})")
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
