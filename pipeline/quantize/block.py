"""Quantize one decoder block, group by group in execution order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, get_args

import torch

from gristmill.calibration.drift import GroupStatistics
from gristmill.calibration.mixture import MIN_EXPERT_TOKENS
from gristmill.calibration.pairs import BlockPair
from gristmill.calibration.statistics import InputStatistics
from gristmill.calibration.streams import run_block
from gristmill.pipeline.prepare.fold import fold_scales, shared_scales
from gristmill.pipeline.quantize.awq import AwqSettings, quantize_awq, search_scales
from gristmill.pipeline.quantize.correct import corrected_weight
from gristmill.pipeline.quantize.coverage import expert_name, uncovered
from gristmill.pipeline.quantize.gptq import GptqSettings, factorize_hessian, quantize_gptq
from gristmill.pipeline.quantize.grids import dequantized
from gristmill.pipeline.quantize.hqq import quantize_hqq
from gristmill.pipeline.quantize.input_scale import input_scale
from gristmill.pipeline.quantize.rtn import quantize_rtn
from gristmill.pipeline.quantize.signround import SignRoundSettings, learn_rounding
from gristmill.pipeline.quantize.smoothquant import SmoothQuantSettings, search_smoothing
from gristmill.recipes.quantize import Method
from gristmill.runtime.errors import InputError, ModelError
from gristmill.runtime.model_plan import LayerPlan, LinearPlan
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme

__all__ = [
    "DATA_FREE",
    "BlockObservations",
    "BlockResult",
    "QuantizeSettings",
    "quantize_block",
    "served_weights",
]

Weights = Mapping[str, torch.Tensor]

DATA_FREE = ("rtn", "hqq")
"""Methods that look at the weights alone."""

_KEPT_ROWS = 256


class BlockObservations(Protocol):
    """What a method may ask about a block; `calibration.step.BlockStep` is one."""

    def overview(self, weights: Weights) -> Mapping[tuple[str, ...], InputStatistics]:
        """Statistics of all input groups at once, none quantized, over a sample of the sequences."""

    def group(self, index: int, weights: Weights) -> GroupStatistics:
        """Statistics of one input group behind the earlier ones, which are quantized in `weights`."""

    def pairs(self) -> Sequence[BlockPair]:
        """The block's inputs and the original's outputs, for methods that learn; asked for last."""


@dataclass(frozen=True, slots=True)
class QuantizeSettings:
    """How a block is quantized.

    schemes             by linear name; None, or no entry, leaves a linear as it is
    scale_first         fold AWQ's scales before GPTQ rounds
    input_percentile    of an input's values, by size, that a static scale keeps in range
    correct_drift       aim at the original model's outputs, where the walk follows them
    correction_damping  ridge of that correction, as a part of the Hessian's mean diagonal
    min_expert_tokens   for experts that get fewer, the other tokens of their layer count too
    """

    method: Method
    schemes: Mapping[str, QuantScheme | None]
    gptq: GptqSettings = field(default_factory=GptqSettings)
    awq: AwqSettings = field(default_factory=AwqSettings)
    signround: SignRoundSettings = field(default_factory=SignRoundSettings)
    smoothquant: SmoothQuantSettings = field(default_factory=SmoothQuantSettings)
    scale_first: bool = False
    input_percentile: float = 100.0
    correct_drift: bool = True
    correction_damping: float = 0.5
    min_expert_tokens: int = MIN_EXPERT_TOKENS

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise InputError("quantization method", found=self.method, expected=" or ".join(get_args(Method)))
        if self.correction_damping <= 0:
            raise InputError("correction damping", found=self.correction_damping, expected="above 0")
        if not 0 < self.input_percentile <= 100:
            raise InputError("input percentile", found=self.input_percentile, expected="above 0, at most 100")
        for scheme in filter(None, set(self.schemes.values())):
            _require_possible(self.method, scheme)

    @property
    def folds_scales(self) -> bool:
        """Whether channels are scaled before anything is rounded."""
        return self.scale_first or self.method in ("awq", "smoothquant")

    @property
    def follow_original(self) -> bool:
        """Whether the original model's stream is needed beside the quantized one's."""
        return self.correct_drift or self.method == "signround"

    @property
    def sample_every(self) -> int:
        """Of how many sequences one is followed: what learns, learns from all."""
        return 1 if self.method == "signround" else 4

    @property
    def keep_rows(self) -> int:
        """Rows of every input that statistics hold, for what sums don't tell."""
        is_clipped = self.input_percentile < 100 and any(s and s.is_static for s in self.schemes.values())
        return _KEPT_ROWS if self.method == "smoothquant" or is_clipped else 0


@dataclass(frozen=True, slots=True, eq=False)
class BlockResult:
    """A quantized block.

    quantized  by linear name
    dense      tensors that changed and are not quantized, by checkpoint name
    errors     tr(E H E^T) / tr(W H W^T) by linear name: the output error of
               rounding as a part of the output; E is the distance to the weight
               that was rounded, or, where all linears learn together, to the
               original's
    routed     calibration tokens that the router sent to each expert, by the expert's name
    notes      what a user should know, such as raised damping
    """

    quantized: dict[str, QuantizedTensor]
    dense: dict[str, torch.Tensor]
    errors: dict[str, float]
    routed: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def quantize_block(
    layer: LayerPlan, weights: Weights, statistics: BlockObservations | None, settings: QuantizeSettings
) -> BlockResult:
    """Quantize what `settings.schemes` names; `weights` are not altered.

    RTN and HQQ do without statistics (errors are then relative to the weight).
    Raises ModelError, naming the linear, for NaN and Inf wherever they arise,
    and InputError for a group size that does not divide.
    """
    if statistics is None and settings.method not in DATA_FREE:
        raise InputError(f"{settings.method} needs calibration statistics")
    current = dict(weights)
    if settings.folds_scales and statistics is not None:
        current.update(_fold(layer, weights, statistics, settings))
    result = BlockResult({}, {}, {})
    notes: list[str] = []
    seen: list[InputStatistics] = []
    is_touched = any(settings.schemes.get(linear.name) for linear in layer.linears)
    for index, group in enumerate(layer.input_groups if is_touched else ()):
        known = None if statistics is None else statistics.group(index, current)
        if known is not None and known.routed is not None:
            result.routed[expert_name(group[0])] = known.routed
        targets = list(_targets(group, current, known, settings))
        inputs = None if known is None else known.inputs
        del known  # its drift is done with: for wide inputs that is much memory
        if settings.method == "signround" and inputs is not None:
            seen.append(inputs)
        for linear, tensor, error in _quantize_group(targets, inputs, settings, notes):
            result.quantized[linear.name] = tensor
            result.errors[linear.name] = error
            current[linear.weight] = dequantized(tensor, weights[linear.weight].dtype)
            current.update(_input_scales(linear.name, tensor))
    if settings.method == "signround" and statistics is not None and result.quantized:
        _learn(layer, weights, statistics, settings, seen, result)
    codes = {linear.weight for linear in layer.linears if linear.name in result.quantized}
    dense = {name: current[name] for name in weights if current[name] is not weights[name]}
    dense = {name: tensor for name, tensor in dense.items() if name not in codes}
    notes += uncovered(layer.index, result.routed, settings.min_expert_tokens)
    return BlockResult(result.quantized, dense, result.errors, result.routed, tuple(notes))


def served_weights(weights: Weights, result: BlockResult) -> dict[str, torch.Tensor]:
    """The block's tensors as an executor will use them, in the dtype of `weights`."""
    served = {**weights, **result.dense}
    for name, tensor in result.quantized.items():
        served[f"{name}.weight"] = dequantized(tensor, weights[f"{name}.weight"].dtype)
        served.update(_input_scales(name, tensor))
    return served


def _input_scales(name: str, tensor: QuantizedTensor) -> dict[str, torch.Tensor]:
    """The stored scale of a linear's input, as executors hold it, if there is one."""
    scale = tensor.input_scale
    return {} if scale is None else {f"{name}.input_scale": torch.tensor([scale])}


def _fold(
    layer: LayerPlan, weights: Weights, statistics: BlockObservations, settings: QuantizeSettings
) -> dict[str, torch.Tensor]:
    """AWQ's or SmoothQuant's scales of all groups, folded: the tensors that changed."""
    seen = statistics.overview(weights)
    folded = dict(weights)
    for group in layer.scaling_groups:
        names = tuple(linear.name for linear in group.linears)
        parts = [
            (torch.cat([folded[linear.weight] for linear in linears]).float(), scheme)
            for scheme, linears in _by_scheme(group.linears, settings)
        ]
        if parts:
            share = partial(shared_scales, group)
            if settings.method != "smoothquant":
                scales = search_scales(parts, seen[names], settings.awq, share)
            else:
                scales = search_smoothing(
                    parts, seen[names], settings.smoothquant, share, name=", ".join(names)
                )
            folded.update(fold_scales(folded, group, scales))
    return folded


def _by_scheme(
    linears: tuple[LinearPlan, ...], settings: QuantizeSettings
) -> Iterator[tuple[QuantScheme, list[LinearPlan]]]:
    """Linears that are quantized, those with one scheme together if no block spans several."""
    together: dict[QuantScheme, list[LinearPlan]] = {}
    for linear in linears:
        if (scheme := settings.schemes.get(linear.name)) is not None:
            together.setdefault(scheme, []).append(linear)
    for scheme, alike in together.items():
        if scheme.group_rows == 1:
            yield scheme, alike
        else:
            yield from ((scheme, [linear]) for linear in alike)


@dataclass(frozen=True, slots=True, eq=False)
class _Target:
    """Linears with one scheme, which are rounded as one `weight`, float32 [N, K]."""

    scheme: QuantScheme
    linears: list[LinearPlan]
    weight: torch.Tensor

    @property
    def name(self) -> str:
        return ", ".join(linear.name for linear in self.linears)


def _quantize_group(
    targets: Sequence[_Target],
    inputs: InputStatistics | None,
    settings: QuantizeSettings,
    notes: list[str],
) -> Iterator[tuple[LinearPlan, QuantizedTensor, float]]:
    """The linears of one group in codes, with their errors."""
    for target in targets:
        scheme, weight, name = target.scheme, target.weight, target.name
        tensor = _quantize(weight, inputs, replace(scheme, activation=None), settings, name, notes)
        scale = _static_scale(inputs, scheme, settings, name)
        errors = dequantized(tensor, torch.float32).sub_(weight)
        row = 0
        for linear in target.linears:
            rows = slice(row, row + linear.out_features)
            row += linear.out_features
            zeros = tensor.zero_points
            own = QuantizedTensor(
                scheme,
                tensor.codes[rows],
                tensor.scales[rows],
                None if zeros is None else zeros[rows],
                input_scale=scale,
                global_scale=tensor.global_scale,
            )
            yield linear, own, _relative_error(errors[rows], weight[rows], inputs, linear.name)


def _targets(
    group: tuple[LinearPlan, ...],
    weights: Weights,
    known: GroupStatistics | None,
    settings: QuantizeSettings,
) -> Iterator[_Target]:
    """What is to be rounded: the weights, corrected for the drift of their input if that is asked for."""
    for scheme, linears in _by_scheme(group, settings):
        target = _Target(scheme, linears, torch.cat([weights[linear.weight] for linear in linears]).float())
        if known is not None and settings.correct_drift and settings.method not in DATA_FREE:
            weight = corrected_weight(target.weight, known, settings.correction_damping, name=target.name)
            target = replace(target, weight=weight)
        yield target


def _quantize(
    weight: torch.Tensor,
    inputs: InputStatistics | None,
    scheme: QuantScheme,
    settings: QuantizeSettings,
    name: str,
    notes: list[str],
) -> QuantizedTensor:
    if settings.method in ("rtn", "smoothquant"):
        return quantize_rtn(weight, None, scheme, name=name)
    if settings.method == "hqq":
        return quantize_hqq(weight, inputs, scheme, name=name)
    if inputs is None:
        raise InputError(f"{settings.method} needs calibration statistics")
    if settings.method == "awq":
        return quantize_awq(weight, inputs, scheme, settings.awq, name=name)
    factor = factorize_hessian(inputs.hessian, settings.gptq, name=name)
    if factor.damping != settings.gptq.damping:
        notes.append(f"{name}: damping raised from {settings.gptq.damping:g} to {factor.damping:g}")
    if factor.dtype != torch.float32:
        notes.append(f"{name}: the Hessian was factorized in float64")
    return quantize_gptq(weight, inputs, scheme, settings.gptq, factor=factor, name=name)


def _static_scale(
    inputs: InputStatistics | None, scheme: QuantScheme, settings: QuantizeSettings, name: str
) -> float | None:
    if not scheme.is_static:
        return None
    if inputs is None:
        raise InputError(f"{name}: static activations need calibration statistics")
    return input_scale(inputs, scheme, settings.input_percentile, name=name)


def _require_possible(method: Method, scheme: QuantScheme) -> None:
    """Raise InputError for a method that can't make a scheme."""
    if scheme.type == "float" and method != "rtn":
        raise InputError(f"method {method}", found=f"float weights ({scheme.name})", expected="rtn")
    if scheme.activation is not None and method in ("awq", "signround"):
        raise InputError(
            f"method {method}", found=f"quantized inputs ({scheme.name})", expected="rtn, gptq or smoothquant"
        )
    if scheme.activation is None and method == "smoothquant":
        raise InputError(
            "method smoothquant",
            found=f"weights only ({scheme.name})",
            expected="a scheme that quantizes inputs",
        )


def _learn(
    layer: LayerPlan,
    weights: Weights,
    statistics: BlockObservations,
    settings: QuantizeSettings,
    seen: Sequence[InputStatistics],
    result: BlockResult,
) -> None:
    """Train all linears of `result` together, and tell their errors against the original weights."""
    run = partial(run_block, layer)
    pairs = statistics.pairs()
    learned = learn_rounding(run, weights, result.quantized, pairs, settings.signround, seed=layer.index)
    result.quantized.update(learned)
    for group, inputs in zip(layer.input_groups, seen, strict=True):
        for linear in group:
            if linear.name in learned:
                weight = weights[linear.weight].float()
                errors = weight - dequantized(learned[linear.name], torch.float32)
                result.errors[linear.name] = _relative_error(errors, weight, inputs, linear.name)


def _relative_error(
    errors: torch.Tensor, weight: torch.Tensor, inputs: InputStatistics | None, name: str
) -> float:
    if inputs is None:
        lost, whole = errors.square().sum(), weight.square().sum()
    else:
        hessian = inputs.hessian
        lost, whole = ((errors @ hessian) * errors).sum(), ((weight @ hessian) * weight).sum()
    error = float(lost / whole) if float(whole) > 0 else float(lost)
    if not math.isfinite(error):
        raise ModelError(f"the error of quantizing {name} is not finite", found=error)
    return max(error, 0.0)  # float32 can turn a tiny error negative
