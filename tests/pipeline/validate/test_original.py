"""The original's logits, block by block, are those of the executor and of transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gristmill.pipeline.validate.logits import ExecutorLogits
from gristmill.pipeline.validate.original import OriginalLogits
from gristmill.runtime.architectures import plan_model
from gristmill.runtime.checkpoint import open_checkpoint
from gristmill.runtime.executors.base import KVCacheConfig
from gristmill.runtime.executors.reference.executor import ReferenceExecutor
from gristmill.runtime.sources.open import open_source
from tests.listener import Listener

SEQUENCES = [list(range(3, 40)), [5], list(range(100, 170)), list(range(7, 44))]


def original(folder: Path) -> OriginalLogits:
    source = open_source(str(folder), folder)
    return OriginalLogits(plan_model(source.config), source, "float32")


@pytest.fixture(params=["tiny_llama", "tiny_llama_untied"])
def folder(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


def test_logits_are_those_of_transformers(folder: Path) -> None:
    from transformers import LlamaForCausalLM

    oracle = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    chunks = list(original(folder).logits(SEQUENCES, rows=1000))
    for sequence, logits in zip(SEQUENCES, chunks, strict=True):
        with torch.inference_mode():
            expected = oracle(torch.tensor([sequence])).logits[0].numpy()
        np.testing.assert_allclose(logits, expected, atol=1e-4)


def test_both_sources_yield_the_same_chunks(folder: Path) -> None:
    executor = ReferenceExecutor(open_checkpoint(folder), KVCacheConfig(8, 16, "float32"), "float32")
    pairs = zip(
        original(folder).logits(SEQUENCES, rows=16),
        ExecutorLogits(executor).logits(SEQUENCES, rows=16),
        strict=True,
    )
    for block_by_block, served in pairs:
        np.testing.assert_allclose(block_by_block, served, atol=1e-4)


def test_the_observer_sees_what_leaves_every_layer(folder: Path) -> None:
    from transformers import LlamaForCausalLM

    seen: list[tuple[int, torch.Tensor]] = []
    source = open_source(str(folder), folder)
    watched = OriginalLogits(
        plan_model(source.config),
        source,
        "float32",
        observe=lambda layer, states: seen.append((layer, states)),
    )
    list(watched.logits(SEQUENCES[:1], rows=1000))
    oracle = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        hidden = oracle(torch.tensor(SEQUENCES[:1]), output_hidden_states=True).hidden_states
    assert [layer for layer, _ in seen] == [0, 1, 2]
    for (_, states), expected in zip(seen[:-1], hidden[1:-1], strict=True):  # the last is behind the norm
        torch.testing.assert_close(states, expected, atol=1e-4, rtol=1e-4)


def test_progress_counts_layers(folder: Path) -> None:
    listener = Listener()
    source = open_source(str(folder), folder)
    told = OriginalLogits(plan_model(source.config), source, "float32", progress=listener)
    next(told.logits(SEQUENCES, rows=16))
    assert listener.heard == ["original: 3 layers", "+1", "+1", "+1"]
