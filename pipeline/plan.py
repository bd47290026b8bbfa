"""How much memory a build takes, stated before it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gristmill.calibration.batches import BATCH_TOKENS
from gristmill.calibration.memory import walk_memory
from gristmill.calibration.samples import TokenSamples
from gristmill.pipeline.model import BuildModel
from gristmill.pipeline.quantize.block import QuantizeSettings
from gristmill.pipeline.quantize.run import walk_compute
from gristmill.pipeline.search.stage import split_sequences
from gristmill.pipeline.validate.data import HeldOut, longest_window
from gristmill.runtime.errors import InputError, OutsideError
from gristmill.runtime.memory import free_memory
from gristmill.runtime.model_plan import LayerPlan, LinearPlan, ModelPlan, MoePlan

__all__ = ["MemoryPlan", "gptq_work", "largest_layer", "plan_memory", "require_memory"]

_PROCESS = 450_000_000
"""The interpreter, torch and their buffers: measured 0.40 GB on Linux with the CPU build."""

_FLOAT = 4
_VALIDATION_ROWS = 512
_SEARCH_ROWS = 256


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Peak bytes of the large stages; the build's peak is the largest over the process itself.

    search    the original's states and gradients at every block, and a walk; 0 without a search
    quantize  the walk (blocks, hidden states, second moments) and one group's work space
    validate  the quantized model in each engine, hidden states, chunks of logits
    streamed  whether validation reads each weight of the reference engine as it is needed, which is
              slow, because the whole model would not fit
    """

    quantize: int
    validate: int
    search: int = 0
    streamed: bool = False

    @property
    def total(self) -> int:
        """Peak bytes of the whole build."""
        return _PROCESS + max(self.search, self.quantize, self.validate)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {**asdict(self), "process": _PROCESS, "total": self.total}

    def line(self) -> str:
        """The plan in one line."""
        search = f"search {self.search / 1e9:.2f}, " if self.search else ""
        streamed = " streamed" if self.streamed else ""
        return (
            f"memory: {self.total / 1e9:.2f} GB planned ({search}quantize {self.quantize / 1e9:.2f}, "
            f"validate {self.validate / 1e9:.2f}{streamed}, process {_PROCESS / 1e9:.2f})"
        )


def plan_memory(
    model: BuildModel,
    settings: QuantizeSettings,
    samples: TokenSamples | None,
    held_out: Sequence[HeldOut],
    engines: int = 0,
    *,
    searches: bool = False,
    limit: int | None = None,
) -> MemoryPlan:
    """An upper estimate from shapes alone; nothing is loaded. `engines` counts those beside the reference.

    `searches` says whether units of linears are compared. Validation holds the
    whole model where that stays below the user's `limit` and what is free.
    Raises PromptError for too few samples for a search.
    """
    tokens = samples.tokens if samples is not None else 0
    quantize = _quantize(model.plan, tokens, settings)
    search = _search(model.plan, samples) if searches and samples is not None else 0
    plans = [
        MemoryPlan(quantize, _validate(model.plan, held_out, engines, streamed=streamed), search, streamed)
        for streamed in (False, True)
    ]
    room = free_memory().size + _PROCESS
    if plans[0].total <= (room if limit is None else min(limit, room)):
        return plans[0]
    return min(plans, key=lambda plan: plan.total)


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


def largest_layer(plan: ModelPlan) -> LayerPlan:
    """The layer with most weights, the first of equals: what decides whether a build fits."""
    return max(plan.layers, key=_block_weights)


def _quantize(plan: ModelPlan, tokens: int, settings: QuantizeSettings) -> int:
    """The walk's states, blocks and statistics, and the largest block's work in float32."""
    if tokens == 0:
        return 3 * max(map(_block_weights, plan.layers), default=0) * _FLOAT
    work = gptq_work if settings.method == "gptq" and not settings.folds_scales else _search_work
    follow = settings.follow_original
    walk = walk_memory(plan, tokens, walk_compute(plan), follow_original=follow, layer_work=work)
    if settings.method == "signround":
        walk += max(_learning_work(plan, layer, min(tokens, BATCH_TOKENS)) for layer in plan.layers)
    return walk


def _search(plan: ModelPlan, samples: TokenSamples) -> int:
    """A walk over the statistics' samples, and the original's states, gradients and logits of the others."""
    measured, others = split_sequences(samples.sequences)
    tokens = sum(map(len, measured))
    walk = walk_memory(plan, sum(map(len, others)), walk_compute(plan), follow_original=False)
    block = max(map(_block_weights, plan.layers), default=0)
    states = 2 * (len(plan.layers) + 1) * tokens * plan.hidden_size
    head = 2 * plan.vocab_size * plan.hidden_size + 6 * _SEARCH_ROWS * plan.vocab_size
    work = max((_learning_work(plan, layer, min(tokens, BATCH_TOKENS)) for layer in plan.layers), default=0)
    return walk + (states + head + 3 * block) * _FLOAT + work


def _block_weights(layer: LayerPlan) -> int:
    return sum(map(math.prod, layer.tensor_shapes().values()))


def gptq_work(layer: LayerPlan) -> int:
    """Matrices of float32 for one group of linears.

    First two Hessians, the gap, a factor twice, and the weights four times while
    they are corrected; then one Hessian and two matrices of float64 while it is
    factorized; then Hessian, factor and the weights six times.
    """

    def work(group: tuple[LinearPlan, ...]) -> int:
        square, weights = _group_size(group)
        corrected = 4 * square + (square if len(group) > 1 else weights) + 4 * weights
        return max(corrected, 5 * square + weights, 2 * square + 6 * weights)

    return _FLOAT * max(map(work, layer.input_groups))


def _search_work(layer: LayerPlan) -> int:
    """Float32 copies of one group's weights while they are searched and rounded, and of its Hessian.

    A scale in front of experts is searched for all their gates and ups at once.
    """
    groups = [*layer.input_groups, *(group.linears for group in layer.scaling_groups)]
    return _FLOAT * max(8 * square + 10 * weights for square, weights in map(_group_size, groups))


def _group_size(group: tuple[LinearPlan, ...]) -> tuple[int, int]:
    """Entries of a group's Hessian, and of its weights."""
    size = group[0].in_features
    return size * size, size * sum(linear.out_features for linear in group)


def _learning_work(plan: ModelPlan, layer: LayerPlan, tokens: int) -> int:
    """What is kept for each weight while it learns, and one batch's activations and their gradients.

    A weight has a value, two moments and a gradient in float32, the served
    weight and its gradient, three codes (first, start of the step, best), and
    passing copies of the largest linear.
    """
    largest = max(linear.in_features * linear.out_features for linear in layer.linears)
    weights = (6 * _FLOAT + 3) * _block_weights(layer) + 6 * _FLOAT * largest
    attention = layer.attention
    projected = sum(part.out_features for part in (attention.q, attention.k, attention.v, attention.o))
    widths = 12 * plan.hidden_size + 3 * (projected + 2 * layer.mlp.width + _outputs(plan, layer))
    hessians = sum(group[0].in_features ** 2 for group in layer.input_groups)
    return weights + 2 * tokens * widths * _FLOAT + hessians * _FLOAT


def _outputs(plan: ModelPlan, layer: LayerPlan) -> int:
    """What down projections give for one token: one of them, or those of all its experts."""
    return plan.hidden_size * (layer.mlp.top_k + 1 if isinstance(layer.mlp, MoePlan) else 1)


def _validate(plan: ModelPlan, held_out: Sequence[HeldOut], engines: int, *, streamed: bool) -> int:
    model = _reference(plan, streamed=streamed) * _FLOAT  # golden logits are recorded in float32
    if not held_out:
        return model
    served = (_reference(plan, streamed=streamed) + engines * plan.num_parameters()) * 2
    hidden = 2 * sum(entry.samples.tokens for entry in held_out) * plan.hidden_size * 2
    logits = (8 + 2 * engines) * min(_VALIDATION_ROWS, longest_window(held_out)) * plan.vocab_size * _FLOAT
    largest = max(plan.vocab_size * plan.hidden_size, *map(_block_weights, plan.layers))
    original = (2 + _FLOAT) * largest  # the embedding, a block or the head, and what it is read as
    return max(model, served + hidden + logits + original)


def _reference(plan: ModelPlan, *, streamed: bool) -> int:
    """Weights that the reference engine holds at once; streamed, its largest tensor and that one's parts."""
    if not streamed:
        return plan.num_parameters()
    largest = max((linear.in_features * linear.out_features for linear in plan.linears), default=0)
    return max(2 * plan.vocab_size * plan.hidden_size, 3 * largest)


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
