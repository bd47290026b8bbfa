"""The search stage: the loss of every unit at every width, a file for each finished layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict, TypeAdapter

from gristmill.artifacts.manifest import Determinism
from gristmill.artifacts.reading import read_bounded
from gristmill.artifacts.strict_json import parse_canonical, to_canonical
from gristmill.calibration.blocks import load_block
from gristmill.calibration.samples import TokenSamples
from gristmill.calibration.walk import BlockWalk
from gristmill.pipeline.model import BuildModel
from gristmill.pipeline.progress import Progress
from gristmill.pipeline.quantize.block import QuantizeSettings
from gristmill.pipeline.quantize.run import QUANTIZE_CODE, walk_compute
from gristmill.pipeline.search.gradients import BlockGradients
from gristmill.pipeline.search.sensitivity import layer_losses
from gristmill.pipeline.search.units import Unit, Width, model_units
from gristmill.pipeline.stages import StageCache, code_version, stage_key
from gristmill.runtime.errors import ArtifactError, PromptError
from gristmill.runtime.files import write_atomic

__all__ = ["MEASURED_TOKENS", "Sensitivity", "UnitLosses", "measure_sensitivity", "split_sequences"]

MEASURED_TOKENS = 1024
"""Tokens over which losses are measured; they are kept out of the statistics."""

_STATISTICS_TOKENS = 2048
_MAX_BYTES = 1 << 20
_CODE = (*QUANTIZE_CODE, "gristmill.pipeline.search")


@dataclass(frozen=True, slots=True)
class UnitLosses:
    """A unit's linears, and what the model loses, in nats a token, at each width."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    linears: tuple[str, ...]
    losses: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Layer:
    units: tuple[UnitLosses, ...]


_LAYER = TypeAdapter(_Layer)


@dataclass(frozen=True, slots=True, eq=False)
class Sensitivity:
    """The losses of `units`, each at each of `widths`, whose bits rise: `losses[unit][width]`."""

    widths: tuple[Width, ...]
    units: tuple[Unit, ...]
    losses: tuple[tuple[float, ...], ...]


def measure_sensitivity(
    model: BuildModel,
    digest: str,
    samples: TokenSamples,
    settings: QuantizeSettings,
    widths: Sequence[Width],
    contract: Determinism,
    stages: StageCache,
    progress: Progress,
) -> Sensitivity:
    """Measure every unit, beginning behind the layers that an earlier build finished.

    `digest` is the source model's. The widths in `settings` do not matter, and
    neither does a budget. Raises PromptError for a single sequence, ModelError.
    """
    units = model_units(model.plan, settings.schemes)
    schemes = {
        name: None if scheme is None else widths[0].of(scheme) for name, scheme in settings.schemes.items()
    }
    settings = replace(settings, schemes=schemes)
    inputs = {
        "model": digest,
        "samples": samples.digest,
        "settings": asdict(settings),
        "widths": [asdict(width) for width in widths],
        "contract": asdict(contract),
    }
    key = stage_key("search", inputs, code_version(_CODE))
    if (done := stages.finished("search", key)) is not None:
        return _collect(done, units, widths)
    with stages.open("search", key) as stage:
        progress.stage("search", len(model.plan.layers), "layers")
        _measure(model, samples, settings, units, widths, stage.folder, progress)
        return _collect(stage.finish(), units, widths)


def split_sequences(
    sequences: Sequence[Sequence[int]],
) -> tuple[list[Sequence[int]], list[Sequence[int]]]:
    """Those that losses are measured on, and those that statistics are taken from; none is in both.

    The former are evenly spread and have about `MEASURED_TOKENS` tokens, the
    latter are a part too. Raises PromptError for less than two sequences.
    """
    if len(sequences) < 2:
        raise PromptError(
            "calibration for a search",
            found=f"{len(sequences)} sequence",
            expected="two at least: one to take statistics from, one to measure losses on",
            hint="raise calibration.samples",
        )
    mean = sum(map(len, sequences)) / len(sequences)
    count = min(max(round(MEASURED_TOKENS / mean), 1), len(sequences) // 2)
    step = len(sequences) // count
    measured = sequences[step - 1 :: step][:count]
    others = [s for i, s in enumerate(sequences) if i % step != step - 1 or i // step >= count]
    every = max(int(len(others) * mean) // _STATISTICS_TOKENS, 1)
    return list(measured), others[::every]


def _measure(
    model: BuildModel,
    samples: TokenSamples,
    settings: QuantizeSettings,
    units: Sequence[Unit],
    widths: Sequence[Width],
    folder: Path,
    progress: Progress,
) -> None:
    measured, others = split_sequences(samples.sequences)
    compute = walk_compute(model.plan)
    walk = BlockWalk(model.plan, model.source, others, compute=compute, follow_original=False)
    gradients = BlockGradients(model.plan, model.source, measured)
    for layer in model.plan.layers:
        weights = load_block(model.source, layer, walk.dtype)
        path = _layer_path(folder, layer.index)
        if _is_whole(path):
            progress.skip(1)
        else:
            own = [unit for unit in units if unit.layer == layer.index]
            inputs = walk.observe(layer, weights) if own and not settings.folds_scales else {}
            enter = partial(walk.enter, layer, weights)
            losses = layer_losses(layer, own, weights, inputs, enter, settings, widths, gradients)
            rows = tuple(
                UnitLosses(tuple(linear.name for linear in unit.linears), row)
                for unit, row in zip(own, losses, strict=True)
            )
            write_atomic(path, to_canonical(_LAYER, _Layer(rows), path.name))
            progress.advance()
        walk.advance(layer, weights)


def _layer_path(folder: Path, index: int) -> Path:
    return folder / f"layer-{index:05d}.json"


def _is_whole(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        _read(path)
    except ArtifactError:
        path.unlink()
        return False
    return True


def _read(path: Path) -> tuple[UnitLosses, ...]:
    return parse_canonical(_LAYER, read_bounded(path, _MAX_BYTES), path).units


def _collect(folder: Path, units: tuple[Unit, ...], widths: Sequence[Width]) -> Sensitivity:
    layers = sorted({unit.layer for unit in units})
    rows = [row.losses for layer in layers for row in _read(_layer_path(folder, layer))]
    return Sensitivity(tuple(widths), units, tuple(rows))
