"""The hidden states of all samples in front of one decoder block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gristmill.calibration.batches import Batch
from gristmill.calibration.mixture import MIN_EXPERT_TOKENS, ExpertInputs, NormedRows
from gristmill.calibration.observers import InputObserver, group_name, group_names, require_finite
from gristmill.calibration.statistics import InputStatistics
from gristmill.runtime.executors.reference.blocks import (
    Attend,
    Rotary,
    causal_attention,
    decoder_block,
    rotary_tables,
)
from gristmill.runtime.executors.reference.linears import UNQUANTIZED, Observe, Schemes, Weights
from gristmill.runtime.model_plan import LayerPlan, LinearPlan, MoePlan

__all__ = ["Streams", "run_block"]


@dataclass(slots=True, eq=False)
class Streams:
    """What flows through the blocks, one [B, T, hidden] tensor for each batch.

    hidden    from the blocks as they will be served, inputs quantized as `schemes` say
    original  from the original model's blocks; None for batches where it isn't followed
    keep_rows how many rows of every input statistics hold, about
    min_expert_tokens  for experts that get fewer, the other tokens of their layer count too
    """

    batches: tuple[Batch, ...]
    hidden: list[torch.Tensor]
    original: list[torch.Tensor | None]
    schemes: Schemes
    keep_rows: int
    min_expert_tokens: int = MIN_EXPERT_TOKENS

    def observe(
        self, layer: LayerPlan, weights: Weights, *, sample: bool, each_expert: bool = False
    ) -> dict[tuple[str, ...], InputStatistics]:
        """Statistics of what `layer.scaling_groups` read, over all batches or the sampled ones.

        Nothing is quantized. Each expert's down projection reads its own tokens;
        with `each_expert` there are also those of each gate and up by themselves.
        """
        every = self.keep_every(sample=sample)
        observers: dict[tuple[LinearPlan, ...], InputObserver] = {}
        normed: list[NormedRows] = []
        for batch, hidden in zip(self.batches, self.hidden, strict=True):
            if sample and not batch.sampled:
                continue

            def record(group: tuple[LinearPlan, ...], inputs: torch.Tensor, batch: Batch = batch) -> None:
                rows, features = batch.rows(inputs), group[0].in_features
                if group not in observers:
                    observers[group] = InputObserver(group_name(group), features, keep_every=every)
                observers[group].update(rows)
                if isinstance(layer.mlp, MoePlan) and group == layer.mlp.readers:
                    normed.append(NormedRows(rows))

            run_block(layer, weights, hidden, record)
        found = {group_names(group): observer.statistics() for group, observer in observers.items()}
        if isinstance(layer.mlp, MoePlan):
            experts = self.expert_inputs(layer.mlp, weights, normed)
            for index, group in enumerate(layer.mlp.input_groups):
                if each_expert or len(group) == 1:
                    found[group_names(group)] = experts.group(index, weights).inputs
        return found

    def expert_inputs(
        self, plan: MoePlan, weights: Weights, normed: Sequence[NormedRows], schemes: Schemes = UNQUANTIZED
    ) -> ExpertInputs:
        """What the experts read of `normed`; none of them is quantized in `weights` yet."""
        return ExpertInputs(
            plan,
            weights,
            normed,
            schemes=schemes,
            min_tokens=self.min_expert_tokens,
            keep_rows=self.keep_rows,
        )

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


def _rotary(layer: LayerPlan, hidden: torch.Tensor) -> Rotary | None:
    rope = layer.attention.rope
    return None if rope is None else rotary_tables(rope, torch.arange(hidden.shape[1]), hidden.dtype)
