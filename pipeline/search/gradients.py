"""What a change in one block costs the whole model, to second order and without running the rest of it.

KL(p || q) between the original's distribution and that of the model with the
output of one block changed by d is, to second order, d^T F d / 2 with the Fisher
matrix F = J^T (diag(p) - p p^T) J, J from the block's output to the logits. For
a random z with E[z z^T] = I, v = sqrt(p) * z - p (sqrt(p) . z) has the covariance
diag(p) - p p^T, so that g = J^T v, one backward pass, gives E[(d . g)^2] = d^T F d.
Errors at different tokens are taken as independent, so each token is a sample.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from gristmill.calibration.batches import BATCH_TOKENS, Batch, make_batches
from gristmill.calibration.blocks import load_block, load_tensor
from gristmill.calibration.streams import run_block
from gristmill.runtime.executors.reference.blocks import rms_norm
from gristmill.runtime.executors.reference.linears import Weights
from gristmill.runtime.model_plan import LayerPlan, ModelPlan
from gristmill.runtime.sources.base import ModelSource

__all__ = ["BlockGradients"]

_ROWS_AT_ONCE = 256


class BlockGradients:
    """The original's states in front of every block, and the gradients g behind it, in float32.

    bfloat16 would round the residual stream by as much as a change of 4 bits in
    one block moves it. Blocks are loaded one at a time, each twice.
    """

    def __init__(self, plan: ModelPlan, source: ModelSource, sequences: Sequence[Sequence[int]]) -> None:
        """Run the original over `sequences` and back. Raises ModelError for what isn't there or finite."""
        self._batches = make_batches(sequences, plan.vocab_size, BATCH_TOKENS, 1)
        shape = (plan.vocab_size, plan.hidden_size)
        embedding = load_tensor(source, f"{plan.embedding}.weight", shape, torch.float32)
        head = embedding if plan.head is None else load_tensor(source, plan.head_weight, shape, torch.float32)
        norm = load_tensor(source, f"{plan.final_norm.name}.weight", (plan.final_norm.size,), torch.float32)
        states = [[F.embedding(batch.tokens, embedding) for batch in self._batches]]
        for layer in plan.layers:
            weights = load_block(source, layer, torch.float32)
            states.append([run_block(layer, weights, hidden) for hidden in states[-1]])
        random = torch.Generator().manual_seed(0)
        gradients = [
            [
                _behind_blocks(batch, hidden, norm, plan.final_norm.eps, head, random)
                for batch, hidden in zip(self._batches, states[-1], strict=True)
            ]
        ]
        for layer in reversed(plan.layers[1:]):
            weights = load_block(source, layer, torch.float32)
            before = zip(states[layer.index], gradients[-1], strict=True)
            gradients.append([_in_front(layer, weights, hidden, wanted) for hidden, wanted in before])
        self._states = states
        self._gradients = gradients[::-1]

    def loss(self, layer: LayerPlan, weights: Weights) -> float:
        """The mean KL divergence, in nats a token, of the original with `weights`, float32, in one block."""
        index = layer.index
        streams = zip(
            self._batches,
            self._states[index],
            self._states[index + 1],
            self._gradients[index],
            strict=True,
        )
        total, tokens = 0.0, 0
        for batch, inputs, outputs, gradients in streams:
            change = run_block(layer, weights, inputs).sub_(outputs).mul_(gradients).sum(-1)
            total += float(batch.rows(change[..., None]).square().sum(dtype=torch.float64))
            tokens += batch.num_tokens
        return total / tokens / 2


def _behind_blocks(
    batch: Batch,
    hidden: torch.Tensor,
    norm: torch.Tensor,
    eps: float,
    head: torch.Tensor,
    random: torch.Generator,
) -> torch.Tensor:
    """The gradient g at the output of the last block, [B, T, hidden]; zero on padding."""
    parts = []
    for rows in torch.split(batch.rows(hidden), _ROWS_AT_ONCE):
        states = rows.clone().requires_grad_()
        logits = F.linear(rms_norm(states, norm, eps), head)
        shares = torch.softmax(logits.detach(), -1)
        roots = shares.sqrt()
        noise = torch.randn(shares.shape, generator=random).mul_(roots)
        wanted = noise - shares * (noise.sum(-1, keepdim=True))
        parts.append(torch.autograd.grad(logits, states, wanted)[0])
    gradient = torch.zeros_like(hidden)
    real = torch.ones(hidden.shape[:2], dtype=torch.bool) if batch.real is None else batch.real
    gradient[real] = torch.cat(parts)
    return gradient


def _in_front(
    layer: LayerPlan, weights: Weights, hidden: torch.Tensor, gradient: torch.Tensor
) -> torch.Tensor:
    """The gradient at a block's input from that at its output."""
    states = hidden.clone().requires_grad_()
    return torch.autograd.grad(run_block(layer, weights, states), states, gradient)[0]
