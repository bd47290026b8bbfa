"""How large keys and values become on the calibration tokens: what the scales of a cache must hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F

from gristmill.calibration.batches import BATCH_TOKENS, Batch, make_batches
from gristmill.calibration.blocks import load_tensor
from gristmill.calibration.streams import run_block
from gristmill.runtime.executors.reference.blocks import causal_attention
from gristmill.runtime.executors.reference.kv_twin import hadamard
from gristmill.runtime.executors.reference.linears import UNQUANTIZED, Schemes, Weights
from gristmill.runtime.model_plan import AttentionPlan, LayerPlan, ModelPlan
from gristmill.runtime.sources.base import ModelSource

__all__ = ["KVPeaks", "kv_peaks"]


@dataclass(frozen=True, slots=True)
class KVPeaks:
    """The largest magnitude of one layer's keys, after the rotary embedding, and values, by KV head.

    Of keys both as they are, which is how other engines store them, and turned
    by `hadamard`, as this product's cache does.
    """

    keys: tuple[float, ...]
    values: tuple[float, ...]


@torch.inference_mode()
def kv_peaks(
    plan: ModelPlan,
    source: ModelSource,
    sequences: Sequence[Sequence[int]],
    served: Callable[[LayerPlan, torch.dtype], Weights],
    *,
    compute: Literal["bfloat16", "float32"],
    schemes: Schemes = UNQUANTIZED,
) -> Iterator[KVPeaks]:
    """The peaks of each layer in turn; `served` gives a block's weights as an executor uses them.

    One block is in memory at a time, beside the hidden states of all samples.
    Raises ModelError, naming the layer, if an output is NaN or infinite.
    """
    dtype: torch.dtype = getattr(torch, compute)
    batches = make_batches(sequences, plan.vocab_size, BATCH_TOKENS, sample_every=1)
    embedding = load_tensor(source, f"{plan.embedding}.weight", (plan.vocab_size, plan.hidden_size), dtype)
    hidden = [F.embedding(batch.tokens, embedding) for batch in batches]
    for layer in plan.layers:
        weights = served(layer, dtype)
        recorder = _Recorder()
        for index, batch in enumerate(batches):
            recorder.batch = batch
            hidden[index] = run_block(layer, weights, hidden[index], attend=recorder, schemes=schemes)
        yield KVPeaks(recorder.peaks("keys"), recorder.peaks("values"))


@dataclass(slots=True)
class _Recorder:
    """An `Attend` that keeps what it sees of the real tokens of `batch`."""

    batch: Batch | None = None
    found: dict[str, torch.Tensor] = field(default_factory=dict)

    def __call__(
        self, plan: AttentionPlan, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        for name, x in (("keys", k), ("keys", hadamard(k)), ("values", v)):
            assert self.batch is not None
            peaks = self.batch.rows(x).float().abs().amax(dim=(0, -1))
            self.found[name] = torch.maximum(self.found.get(name, peaks), peaks)
        return causal_attention(plan, q, k, v)

    def peaks(self, name: str) -> tuple[float, ...]:
        return tuple(self.found[name].tolist())
