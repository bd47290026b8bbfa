"""Logits of the original model, one decoder block in memory at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from gristmill.calibration.blocks import load_block, load_tensor
from gristmill.pipeline.progress import Progress, SilentProgress
from gristmill.pipeline.validate.logits import Sequences
from gristmill.runtime.executors.reference.blocks import (
    causal_attention,
    decoder_block,
    head_logits,
    rms_norm,
    rotary_tables,
)
from gristmill.runtime.model_plan import LayerPlan, ModelPlan
from gristmill.runtime.sources.base import ModelSource

__all__ = ["OriginalLogits"]

_BATCH_TOKENS = 4096


class OriginalLogits:
    """A `LogitsSource` over a model's own tensors, for models larger than memory.

    All sequences go through a block together before the next is loaded, so
    that peak memory is one block, the embedding or head, and one hidden state
    a token.
    """

    def __init__(
        self,
        plan: ModelPlan,
        source: ModelSource,
        compute: Literal["bfloat16", "float32"] = "bfloat16",
        observe: Callable[[int, torch.Tensor], None] = lambda layer, states: None,
        progress: Progress | None = None,
    ) -> None:
        """`observe` is shown the hidden states [B, T, hidden] behind each layer, batch by batch.

        `progress` hears of a stage of its own, since all layers come before the first logits.
        """
        self._plan = plan
        self._source = source
        self._dtype: torch.dtype = getattr(torch, compute)
        self._observe = observe
        self._progress = progress or SilentProgress()

    def logits(self, sequences: Sequences, rows: int) -> Iterator[NDArray[np.float32]]:
        """See `LogitsSource`. Raises ModelError for a tensor that is missing, misshapen or not finite."""
        self._progress.stage("original", len(self._plan.layers), "layers")
        hidden = self._embed(sequences)
        for layer in self._plan.layers:
            hidden = self._through(layer, hidden)
            self._progress.advance()
        norm = self._load(f"{self._plan.final_norm.name}.weight", (self._plan.final_norm.size,))
        head = self._load(self._plan.head_weight, (self._plan.vocab_size, self._plan.hidden_size))
        for states in itertools.chain.from_iterable(hidden):
            for start in range(0, len(states), rows):
                yield self._project(states[start : start + rows], norm, head)

    @torch.inference_mode()
    def _embed(self, sequences: Sequences) -> list[torch.Tensor]:
        shape = (self._plan.vocab_size, self._plan.hidden_size)
        embedding = self._load(f"{self._plan.embedding}.weight", shape)
        return [embedding[torch.tensor(batch)] for batch in _batches(sequences)]

    @torch.inference_mode()
    def _through(self, layer: LayerPlan, hidden: list[torch.Tensor]) -> list[torch.Tensor]:
        weights = load_block(self._source, layer, self._dtype)
        rope = layer.attention.rope
        output = []
        for states in hidden:
            positions = torch.arange(states.shape[1])
            tables = None if rope is None else rotary_tables(rope, positions, self._dtype)
            output.append(decoder_block(layer, weights, states, tables, causal_attention))
            self._observe(layer.index, output[-1])
        return output

    @torch.inference_mode()
    def _project(self, states: torch.Tensor, norm: torch.Tensor, head: torch.Tensor) -> NDArray[np.float32]:
        normed = rms_norm(states, norm, self._plan.final_norm.eps)
        logits: NDArray[np.float32] = head_logits(normed, head).numpy()
        return logits

    def _load(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return load_tensor(self._source, name, shape, self._dtype)


def _batches(sequences: Sequences) -> Iterator[list[list[int]]]:
    """Neighbours of equal length together, in order, up to `_BATCH_TOKENS` tokens."""
    for length, group in itertools.groupby(sequences, key=len):
        equal = [list(sequence) for sequence in group]
        size = max(1, _BATCH_TOKENS // length)
        yield from (equal[start : start + size] for start in range(0, len(equal), size))
