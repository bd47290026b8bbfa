"""How much memory a build takes, stated before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.calibration.samples import TokenSamples
from gristmill.pipeline.model import DTYPE_BYTES, BuildModel
from gristmill.pipeline.quantize.run import walk_compute
from gristmill.pipeline.validate.data import HeldOut
from gristmill.runtime.errors import InputError, OutsideError
from gristmill.runtime.memory import free_memory
from gristmill.runtime.model_plan import LayerPlan, ModelPlan

__all__ = ["MemoryPlan", "plan_memory", "require_memory"]

_PROCESS = 450_000_000
"""The interpreter, torch and their buffers: measured 0.40 GB on Linux with the CPU build."""

_FLOAT = 4
_VALIDATION_ROWS = 512
_BATCH_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Peak bytes of the two large stages; the build's peak is the larger one over the process itself.

    quantize  blocks, hidden states of both streams, second moments, one weight's work space
    validate  the whole quantized model in the engine's dtype, hidden states, chunks of logits
    """

    quantize: int
    validate: int

    @property
    def total(self) -> int:
        """Peak bytes of the whole build."""
        return _PROCESS + max(self.quantize, self.validate)

    def line(self) -> str:
        """The plan in one line."""
        return (
            f"memory: {self.total / 1e9:.2f} GB planned (quantize {self.quantize / 1e9:.2f}, "
            f"validate {self.validate / 1e9:.2f}, process {_PROCESS / 1e9:.2f})"
        )


def plan_memory(model: BuildModel, samples: TokenSamples | None, held_out: Sequence[HeldOut]) -> MemoryPlan:
    """An upper estimate from shapes alone; nothing is loaded."""
    size = DTYPE_BYTES[walk_compute(model.plan)]
    tokens = samples.tokens if samples is not None else 0
    return MemoryPlan(_quantize(model.plan, tokens, size), _validate(model.plan, held_out))


def require_memory(plan: MemoryPlan, limit: int | None) -> None:
    """Raise InputError if the plan exceeds the user's `limit`, OutsideError if it exceeds what is free."""
    hint = "fewer calibration samples or a shorter max_tokens need less"
    if limit is not None and plan.total > limit:
        raise InputError(
            "--memory", found=_gb(limit), expected=f"{_gb(plan.total)} for this build", hint=hint
        )
    free = free_memory()
    if plan.total > free.size + _PROCESS:
        raise OutsideError(f"memory {free.source}", found=_gb(free.size), expected=_gb(plan.total), hint=hint)


def _quantize(plan: ModelPlan, tokens: int, size: int) -> int:
    hidden = 4 * tokens * plan.hidden_size * size
    embedding = plan.vocab_size * plan.hidden_size * (size + _FLOAT)
    working = max(map(_block_work, plan.layers), default=0)
    # The embedding is gone before the first block comes.
    return hidden + max(embedding, working + 3 * max(map(_block_weights, plan.layers), default=0) * size)


def _block_weights(layer: LayerPlan) -> int:
    return sum(linear.in_features * linear.out_features for linear in layer.linears)


def _block_work(layer: LayerPlan) -> int:
    """Float32 second moments and cross terms, copies of one group's weights, activations of one batch."""
    moments = sum(group[0].in_features ** 2 for group in layer.input_groups)
    largest = max(layer.linears, key=lambda linear: linear.in_features * linear.out_features)
    copies = 12 * largest.in_features * largest.out_features + 6 * largest.in_features**2
    widest = max(linear.out_features for linear in layer.linears)
    activations = _BATCH_TOKENS * (8 * layer.input_norm.size + 4 * widest)
    return _FLOAT * (moments + copies + activations)


def _validate(plan: ModelPlan, held_out: Sequence[HeldOut]) -> int:
    model = plan.num_parameters() * _FLOAT  # golden logits are recorded in float32
    if not held_out:
        return model
    served = plan.num_parameters() * 2
    hidden = 2 * sum(entry.samples.tokens for entry in held_out) * plan.hidden_size * 2
    logits = 8 * _VALIDATION_ROWS * plan.vocab_size * _FLOAT
    original = (
        2 * (plan.vocab_size * plan.hidden_size + max(map(_block_weights, plan.layers), default=0)) * _FLOAT
    )
    return max(model, served + hidden + logits + original)


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
