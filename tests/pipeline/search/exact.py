"""The whole tiny model run again, in float32: the slow, obvious twin of every estimate."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from gristmill.calibration.blocks import load_block, load_tensor
from gristmill.calibration.streams import run_block
from gristmill.pipeline.search.stage import split_sequences
from gristmill.runtime.executors.reference.blocks import rms_norm
from tests.pipeline.search.conftest import Tiny

__all__ = ["distribution", "divergence"]


def distribution(tiny: Tiny, changed: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Log-probabilities [tokens, vocab] with some tensors changed, on the tokens that are measured on."""
    plan, source = tiny.model.plan, tiny.model.source
    shape = (plan.vocab_size, plan.hidden_size)
    embedding = load_tensor(source, f"{plan.embedding}.weight", shape, torch.float32)
    norm = load_tensor(source, f"{plan.final_norm.name}.weight", (plan.hidden_size,), torch.float32)
    hidden = F.embedding(torch.tensor(split_sequences(tiny.samples.sequences)[0]), embedding)
    for layer in plan.layers:
        hidden = run_block(layer, {**load_block(source, layer, torch.float32), **changed}, hidden)
    logits = F.linear(rms_norm(hidden, norm, plan.final_norm.eps), embedding)
    return torch.log_softmax(logits.flatten(0, 1), -1)


def divergence(original: torch.Tensor, other: torch.Tensor) -> float:
    """Mean KL, in nats a token, of two results of `distribution`."""
    return float((original.exp() * (original - other)).sum(-1, dtype=torch.float64).mean())
