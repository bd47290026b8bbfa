"""The walk through a model, one decoder block at a time.

The hidden states of all samples wait in front of a block; the block's weights
come, are observed and quantized, carry the hidden states across, and go. Two
streams may run side by side: the one that the quantized blocks produce, and
the original model's, which tells how far the first has drifted.

    walk = BlockWalk(plan, source, samples.sequences)
    for layer in plan.layers:
        weights = load_block(source, layer, walk.dtype)
        step = walk.enter(layer, weights)
        result = quantize_block(layer, weights, step, settings)
        step.leave(served_weights(weights, result))

A resumed build calls `advance` for the blocks that it finds finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F

from gristmill.calibration.batches import BATCH_TOKENS, make_batches, sampling_interval
from gristmill.calibration.blocks import load_tensor
from gristmill.calibration.mixture import MIN_EXPERT_TOKENS
from gristmill.calibration.statistics import InputStatistics
from gristmill.calibration.step import BlockStep
from gristmill.calibration.streams import Streams, run_block
from gristmill.runtime.errors import PromptError
from gristmill.runtime.executors.reference.linears import UNQUANTIZED, Schemes, Weights
from gristmill.runtime.model_plan import LayerPlan, ModelPlan
from gristmill.runtime.sources.base import ModelSource

__all__ = ["BlockWalk"]


class BlockWalk:
    """All samples in front of one block; `advance`, or a step's `leave`, carries them to the next."""

    def __init__(
        self,
        plan: ModelPlan,
        source: ModelSource,
        sequences: Sequence[Sequence[int]],
        *,
        compute: Literal["bfloat16", "float32"] = "bfloat16",
        batch_tokens: int = BATCH_TOKENS,
        sample_every: int = 4,
        follow_original: bool = True,
        schemes: Schemes = UNQUANTIZED,
        keep_rows: int = 0,
        min_expert_tokens: int = MIN_EXPERT_TOKENS,
    ) -> None:
        """Embed the samples. Raises PromptError for tokens or lengths that the model doesn't have.

        Every `sample_every`-th sequence is in the sample: the original model's
        stream is followed for those, and quick looks are taken at them. By default
        that is a quarter of them, or more where it would be under 8192 tokens.
        Linears in `schemes` read quantized inputs where these say so. Statistics
        hold about `keep_rows` rows of every input. For experts that get fewer
        than `min_expert_tokens`, the other tokens of their layer count too.
        """
        every = sample_every or sampling_interval(sum(map(len, sequences)))
        batches = make_batches(sequences, plan.vocab_size, batch_tokens, every)
        longest = max(batch.tokens.shape[1] for batch in batches)
        if longest > plan.max_positions:
            raise PromptError(
                "calibration sequence",
                found=f"{longest} tokens",
                expected=f"at most the model's {plan.max_positions} positions",
            )
        self.dtype: torch.dtype = getattr(torch, compute)
        shape = (plan.vocab_size, plan.hidden_size)
        embedding = load_tensor(source, f"{plan.embedding}.weight", shape, self.dtype)
        hidden = [F.embedding(batch.tokens, embedding) for batch in batches]
        original = [
            states if follow_original and batch.sampled else None
            for batch, states in zip(batches, hidden, strict=True)
        ]
        self._streams = Streams(batches, hidden, original, schemes, keep_rows, min_expert_tokens)

    @property
    def hidden(self) -> tuple[torch.Tensor, ...]:
        """The states in front of the next block, one [B, T, hidden] tensor a batch."""
        return tuple(self._streams.hidden)

    def observe(
        self, layer: LayerPlan, weights: Weights, *, sample: bool = False
    ) -> dict[tuple[str, ...], InputStatistics]:
        """Statistics of what every input group and scaling group of a block reads, by its linears' names.

        Nothing moves. With `sample`, over the sampled sequences only.
        """
        return self._streams.observe(layer, weights, sample=sample, each_expert=True)

    def enter(self, layer: LayerPlan, weights: Weights) -> BlockStep:
        """Go through a block in stages; `weights` are the original's."""
        return BlockStep(self._streams, layer, weights)

    def advance(self, layer: LayerPlan, weights: Weights, original: Weights | None = None) -> None:
        """Move all samples behind a block.

        The original model's stream takes `original`, or `weights` too without
        it. Raises ModelError if an output isn't finite.
        """
        streams = self._streams
        own = weights if original is None else original
        for index, hidden in enumerate(streams.hidden):
            streams.hidden[index] = run_block(layer, weights, hidden, schemes=streams.schemes)
            if (states := streams.original[index]) is not None:
                streams.original[index] = run_block(layer, own, states)
