"""The reference executor: torch on CPU, slow and obvious; what every other executor is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gristmill.runtime.errors import InputError, UnsupportedError
from gristmill.runtime.executors.base import ExecutorInfo, KVCacheConfig, SequenceStep
from gristmill.runtime.executors.reference.blocks import (
    Rotary,
    decoder_block,
    head_logits,
    rms_norm,
    rotary_tables,
)
from gristmill.runtime.executors.reference.kv_twin import KV_STORAGE
from gristmill.runtime.executors.reference.paged import LayerCache, StepLayout, lay_out, paged_attention
from gristmill.runtime.executors.reference.weights import StreamedWeights, WeightSource, load_weights
from gristmill.runtime.executors.step_check import check_batch, check_copies
from gristmill.runtime.kv_scales import KVScales, with_scales
from gristmill.runtime.model_plan import ModelPlan, RopePlan
from gristmill.runtime.settings import Compute

__all__ = ["ReferenceExecutor"]

_COMPUTE: Mapping[str, torch.dtype] = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class ReferenceExecutor:
    """An `Executor` that runs the blocks of `blocks.py` over a paged cache.

    Weights are held in the compute dtype, dequantized once. The float32 mode is
    the exact one: chunks, batches and whole prompts agree to about 1e-5.
    Raises UnsupportedError for a compute or cache dtype, or an activation
    scheme, that it does not have.
    """

    def __init__(
        self,
        checkpoint: WeightSource,
        cache: KVCacheConfig,
        compute: Compute = "bfloat16",
        *,
        streamed: bool = False,
    ) -> None:
        self._dtype = _lookup("compute dtype", compute, _COMPUTE)
        _lookup("KV cache dtype", cache.dtype, KV_STORAGE)
        if cache.num_blocks < 1 or cache.block_size < 1:
            raise InputError(
                "KV cache",
                found=f"{cache.num_blocks} blocks of {cache.block_size} tokens",
                expected="at least one of each",
            )
        self._plan = checkpoint.plan
        self._cache = cache
        scales = checkpoint.kv_scales if cache.dtype == "fp8" else ()
        self._info = ExecutorInfo(
            name="reference",
            compute=compute,
            kv_cache=cache.dtype,
            kernels={"linear": "torch", "attention": with_scales("torch", scales)},
            kv_scales=scales,
        )
        weights = StreamedWeights if streamed else load_weights
        self._weights: Mapping[str, torch.Tensor] = weights(checkpoint, self._dtype)
        self._schemes = checkpoint.schemes
        self._layers = [
            _empty_cache(self._plan, index, cache, scales) for index in range(len(self._plan.layers))
        ]

    @property
    def plan(self) -> ModelPlan:
        return self._plan

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    @property
    def cache(self) -> KVCacheConfig:
        return self._cache

    @torch.inference_mode()
    def execute(self, batch: Sequence[SequenceStep]) -> NDArray[np.float32]:
        """See `Executor.execute`."""
        check_batch(self._plan, self._cache, batch)
        if not batch:
            return np.empty((0, self._plan.vocab_size), dtype=np.float32)
        layout = lay_out(batch, self._cache.block_size)
        return self._logits(self._hidden(layout)[layout.logit_rows])

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """See `Executor.copy_blocks`."""
        check_copies(self._cache, pairs)
        for source, target in pairs:
            for layer in self._layers:
                layer.keys[target] = layer.keys[source]
                layer.values[target] = layer.values[source]

    def close(self) -> None:
        """Give the memory back; the executor can't be used afterwards."""
        self._weights = {}
        self._layers.clear()

    def _hidden(self, layout: StepLayout) -> torch.Tensor:
        """The last block's output, [tokens, hidden]."""
        hidden = self._weights[f"{self._plan.embedding}.weight"][layout.token_ids]
        rotary: dict[RopePlan | None, Rotary | None] = {None: None}
        for layer, cache in zip(self._plan.layers, self._layers, strict=True):
            rope = layer.attention.rope
            if rope is not None and rope not in rotary:
                rotary[rope] = rotary_tables(rope, layout.positions, self._dtype)
            attend = partial(paged_attention, layout, cache)
            hidden = decoder_block(layer, self._weights, hidden, rotary[rope], attend, schemes=self._schemes)
        return hidden

    def _logits(self, hidden: torch.Tensor) -> NDArray[np.float32]:
        norm = self._plan.final_norm
        normed = rms_norm(hidden, self._weights[f"{norm.name}.weight"], norm.eps)
        logits: NDArray[np.float32] = head_logits(normed, self._weights[self._plan.head_weight]).numpy()
        return logits


def _empty_cache(plan: ModelPlan, index: int, cache: KVCacheConfig, scales: KVScales) -> LayerCache:
    attention = plan.layers[index].attention
    heads, dtype = attention.num_kv_heads, KV_STORAGE[cache.dtype]
    shape = (cache.num_blocks, cache.block_size, heads, attention.head_dim)
    keys, values = scales[index].by_head(heads) if scales else ((1.0,) * heads, (1.0,) * heads)
    return LayerCache(
        dtype=cache.dtype,
        keys=torch.zeros(shape, dtype=dtype),
        values=torch.zeros(shape, dtype=dtype),
        key_scales=torch.tensor(keys),
        value_scales=torch.tensor(values),
    )


def _lookup(what: str, name: Any, known: Mapping[Any, torch.dtype]) -> torch.dtype:
    if name not in known:
        raise UnsupportedError(f"reference executor: {what}", found=name, expected=", ".join(known))
    return known[name]
