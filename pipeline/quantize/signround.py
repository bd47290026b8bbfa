"""Learned rounding and scales, after SignRound (Cheng et al. 2023, arXiv 2309.05516).

All linears of a block are trained together to give back the original block's
outputs. Each weight has a value between two codes that is rounded in the
forward pass and learned through a straight-through estimator; each group's
scale has a gain, whose gradient is exact. Differences from the paper, each
measured in `README.md`: training starts from a finished solution, of which no
code moves by more than one; steps are Adam's instead of the gradient's sign;
the loss is relative to each token's output, so that the few tokens with huge
states do not hide the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gristmill.calibration.pairs import BlockPair
from gristmill.pipeline.quantize.grids import Grid, grouped, quantized_tensor, storable_scales
from gristmill.runtime.errors import InputError, ModelError
from gristmill.runtime.scheme import QuantizedTensor

__all__ = ["LearnedLinear", "SignRoundSettings", "learn_rounding", "relative_loss"]

Weights = Mapping[str, torch.Tensor]
RunBlock = Callable[[Weights, torch.Tensor], torch.Tensor]

_CHECKS = 4
_CHECKED_BATCHES = 4
_BETAS = (0.9, 0.95)
_HALF = 0.499
_EPSILON = 1e-30
"""Far below any gradient: steps have one size whatever the scale of the loss."""


@dataclass(frozen=True, slots=True)
class SignRoundSettings:
    """How rounding is learned.

    iterations           steps, each over one batch; their size falls to zero linearly
    learning_rate        the first steps' size, in codes
    scale_learning_rate  the same for scales, as a part of a scale
    """

    iterations: int = 150
    learning_rate: float = 0.01
    scale_learning_rate: float = 0.002

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise InputError("SignRound iterations", found=self.iterations, expected="at least 1")
        for field in ("learning_rate", "scale_learning_rate"):
            if not 0 <= getattr(self, field) <= 1:
                raise InputError(f"SignRound {field}", found=getattr(self, field), expected="0 to 1")


def learn_rounding(
    run: RunBlock,
    weights: Weights,
    start: Mapping[str, QuantizedTensor],
    pairs: Sequence[BlockPair],
    settings: SignRoundSettings,
    *,
    seed: int = 0,
) -> dict[str, QuantizedTensor]:
    """The linears of `start` in codes with which `run` comes nearer to the outputs of `pairs`.

    run      the block's forward pass with other weights; `weights` are the original's
    seed     decides the order of the batches, and with it the result to the bit

    The best of a few looks is kept, so the result is never worse than `start`
    on the batches looked at. Raises ModelError if an output is not finite.
    """
    linears = {name: LearnedLinear(weights[f"{name}.weight"], tensor) for name, tensor in start.items()}
    checked = pairs[:: max(1, len(pairs) // _CHECKED_BATCHES)]
    best, least = dict(start), _error(run, weights, linears, checked)
    optimizer = _optimizer(linears.values(), settings)
    every = max(1, settings.iterations // _CHECKS)
    with torch.enable_grad():
        for step, pair in enumerate(_batches(pairs, settings.iterations, seed), start=1):
            optimizer.zero_grad(set_to_none=True)
            loss = relative_loss(run(_served(weights, linears), pair.inputs), pair)
            torch.autograd.backward(loss)
            _set_rates(optimizer, 1 - (step - 1) / settings.iterations)
            optimizer.step()
            for linear in linears.values():
                linear.bound()
            if step % every and step < settings.iterations:
                continue
            if (error := _error(run, weights, linears, checked)) < least:
                best = {name: linear.tensor(name) for name, linear in linears.items()}
                least = error
    return best


def relative_loss(output: torch.Tensor, pair: BlockPair) -> torch.Tensor:
    """The mean over real tokens of |output - wanted|^2 / |wanted|^2."""
    wanted = pair.batch.rows(pair.outputs).float()
    lost = (pair.batch.rows(output).float() - wanted).square().sum(-1)
    size = wanted.square().sum(-1).clamp_(min=torch.finfo(torch.float32).tiny)
    return (lost / size).mean()


class LearnedLinear:
    """One linear while it learns: a value for each weight, a gain for each scale.

    A value starts where the original weight lies on the grid of `start`, or at
    the nearest point that is rounded to the code of `start`.
    """

    def __init__(self, weight: torch.Tensor, start: QuantizedTensor) -> None:
        self.start = start
        self._scales = torch.from_numpy(start.scales)
        self._codes = torch.from_numpy(start.codes)
        self._zeros = (
            torch.full_like(self._scales, start.scheme.midpoint)
            if start.zero_points is None
            else torch.from_numpy(start.zero_points).float()
        )
        values = grouped(weight.float(), start.scheme) / self._scales[..., None] + self._zeros[..., None]
        codes = self._codes.float()
        self.values = values.view_as(codes).clamp_(codes - _HALF, codes + _HALF).requires_grad_()
        self.gains = torch.ones_like(self._scales).requires_grad_()
        self.bound()

    def weight(self, dtype: torch.dtype) -> torch.Tensor:
        """The weight [N, K] that the rounded values mean; differentiable."""
        scales = self._scales * self.gains
        stored = scales + (storable_scales(scales.detach(), self.start.scheme) - scales).detach()
        weight: torch.Tensor = _Dequantize.apply(  # type: ignore[no-untyped-call]
            self.values, stored, self._zeros, dtype
        )
        return weight

    def bound(self) -> None:
        """Keep values within one code of the start, and gains between a half and two."""
        with torch.no_grad():
            codes = self._codes.float()
            self.values.clamp_(
                (codes - 1).clamp_(min=0), codes.add_(1).clamp_(max=self.start.scheme.max_code)
            )
            self.gains.clamp_(0.5, 2)

    def tensor(self, name: str) -> QuantizedTensor:
        """What has been learned, in the form that is stored."""
        with torch.no_grad():
            scales = storable_scales(self._scales * self.gains, self.start.scheme)
            return quantized_tensor(self.values.round(), Grid(self.start.scheme, scales, self._zeros), name)


class _Dequantize(torch.autograd.Function):
    """`(round(values) - zeros) * scales` in the compute dtype; rounding counts as the identity backwards."""

    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        ctx.save_for_backward(values, scales, zeros)
        return _levels(values, zeros).mul_(scales[..., None]).view_as(values).to(dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        values, scales, zeros = ctx.saved_tensors
        gradient = gradients[0].float().view(*scales.shape, -1)
        of_scales = _levels(values, zeros).mul_(gradient).sum(-1)
        return (gradient * scales[..., None]).view_as(values), of_scales, None, None


def _levels(values: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """Codes less their zero point, [N, G, size]."""
    return values.round().view(*zeros.shape, -1).sub_(zeros[..., None])


def _served(weights: Weights, linears: Mapping[str, LearnedLinear]) -> dict[str, torch.Tensor]:
    served = dict(weights)
    for name, linear in linears.items():
        served[f"{name}.weight"] = linear.weight(weights[f"{name}.weight"].dtype)
    return served


def _error(
    run: RunBlock, weights: Weights, linears: Mapping[str, LearnedLinear], pairs: Sequence[BlockPair]
) -> float:
    with torch.no_grad():
        served = _served(weights, linears)
        losses = [float(relative_loss(run(served, pair.inputs), pair)) for pair in pairs]
    error = sum(losses) / len(losses)
    if not math.isfinite(error):
        raise ModelError(f"the output error of {', '.join(linears)} is not finite", found=error)
    return error


def _optimizer(linears: Iterable[LearnedLinear], settings: SignRoundSettings) -> torch.optim.Adam:
    linears = tuple(linears)
    groups: list[dict[str, Any]] = [
        {"params": [linear.values for linear in linears], "first": settings.learning_rate},
        {"params": [linear.gains for linear in linears], "first": settings.scale_learning_rate},
    ]
    return torch.optim.Adam(groups, betas=_BETAS, eps=_EPSILON, fused=True)


def _set_rates(optimizer: torch.optim.Adam, part: float) -> None:
    """Let the next step be `part` of the first one's size."""
    for group in optimizer.param_groups:
        group["lr"] = part * group["first"]


def _batches(pairs: Sequence[BlockPair], count: int, seed: int) -> Iterator[BlockPair]:
    """`count` batches: all of them in random order, then all again."""
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = []
    for _ in range(count):
        order = order or torch.randperm(len(pairs), generator=generator).tolist()
        yield pairs[order.pop()]
