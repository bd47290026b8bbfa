"""Charts as places in a plot, in percent from its left and top edge; the page draws them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gristmill.pipeline.report.builds import BuildPoint
from gristmill.pipeline.report.errors_by_layer import ErrorGrid
from gristmill.pipeline.report.mix import Mix
from gristmill.pipeline.validate.outliers import LayerOutliers

__all__ = [
    "Axis",
    "Column",
    "HeatCell",
    "HeatMap",
    "Histogram",
    "Mark",
    "Scatter",
    "Tick",
    "axis",
    "error_map",
    "length_histogram",
    "outlier_columns",
    "size_against_quality",
]

_TICKS = 5
_LABEL_HEIGHT = 7.0
_LABEL_WIDTH = 45.0
_LABEL_LENGTH = 24
_ALL_NAMED = 12
"""So many points have labels; of more only the present build, the best and the original."""
_PALEST = 0.06
_NOTHING = 1e-9


@dataclass(frozen=True, slots=True)
class Tick:
    """A labelled place on an axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear axis from 0; `top` is the value at 100 percent."""

    top: float
    ticks: tuple[Tick, ...]

    def at(self, value: float) -> float:
        """The place of a value, in percent."""
        return 100.0 * value / self.top


@dataclass(frozen=True, slots=True)
class Mark:
    """A point of a scatter plot with its label, which may stand at another height to be readable."""

    x: float
    y: float
    label: str
    kind: str
    title: str
    label_y: float = 0.0
    label_left: bool = False


@dataclass(frozen=True, slots=True)
class Scatter:
    """Points over two axes; `front` joins the best of them."""

    x: Axis
    y: Axis
    marks: tuple[Mark, ...]
    front: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Column:
    """One column for each of two series, or for the first alone, where the second is None."""

    label: str
    left: float
    width: float
    first: float
    second: float | None
    title: str


@dataclass(frozen=True, slots=True)
class Histogram:
    """Columns beside an axis."""

    y: Axis
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class HeatCell:
    """A rectangle whose `strength`, from 0 to 1, is its colour."""

    left: float
    top: float
    width: float
    height: float
    strength: float
    title: str


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Rows of cells, one column a layer; `rows` and `columns` label the edges."""

    rows: tuple[Tick, ...]
    columns: tuple[Tick, ...]
    cells: tuple[HeatCell, ...]
    largest: float


def axis(largest: float, unit: str = "") -> Axis:
    """From 0 to a round number not below `largest`, with up to six ticks."""
    largest = largest if largest >= _NOTHING else 1.0
    step = _round_step(largest / _TICKS)
    count = math.ceil(largest / step)
    values = [index * step for index in range(count + 1)]
    top = values[-1]
    return Axis(top, tuple(Tick(100 * value / top, f"{value:.6g}{unit}") for value in values))


def size_against_quality(points: Sequence[BuildPoint], base_size: int) -> Scatter:
    """Size of the checkpoint in MB against mean KL, the original at KL 0."""
    x = axis(max([base_size, *(point.size_bytes for point in points)]) / 1e6)
    y = axis(1.15 * max((point.kl_mean for point in points), default=0.0))
    found = [Mark(x.at(base_size / 1e6), 100.0, "original", "original", _original(base_size))]
    for point in points:
        kind = "present" if point.present else "best" if point.best else "other"
        title = f"{point.label}: {point.size_bytes / 1e6:.1f} MB, KL {point.kl_mean:.4f} on {point.engine}"
        place = (x.at(point.size_bytes / 1e6), 100 - y.at(point.kl_mean))
        found.append(Mark(*place, _short(point.label), kind, title))
    front = [(mark.x, mark.y) for mark, point in zip(found[1:], points, strict=True) if point.best]
    return Scatter(x, y, _labelled(found), (*front, (found[0].x, found[0].y)))


def length_histogram(calibration: Mix | None, validation: Mix | None) -> Histogram:
    """Prompts by length in powers of two."""
    sources = [source for mix in (calibration, validation) if mix for source in mix.sources]
    count = max((len(source.octaves) for source in sources), default=0)
    first, second = _octaves(calibration, count), _octaves(validation, count)
    largest = max([*first, *second], default=0.0)
    y = axis(100 * largest, "%")
    lowest = next((index for index, shares in enumerate(zip(first, second, strict=True)) if any(shares)), 0)
    width = 100 / max(len(first) - lowest, 1)
    columns = []
    for index in range(lowest, len(first)):
        label = f"{2**index}"
        title = f"{2**index} to {2 ** (index + 1) - 1} tokens: "
        title += f"{first[index]:.0%} in calibration, {second[index]:.0%} in validation"
        shares = (y.at(100 * first[index]), y.at(100 * second[index]))
        columns.append(Column(label, (index - lowest) * width, width, *shares, title))
    return Histogram(y, tuple(columns))


def outlier_columns(layers: Sequence[LayerOutliers]) -> Histogram:
    """How many times the median channel the largest is, behind each layer."""
    ratios = [layer.largest / layer.median if layer.median else 0.0 for layer in layers]
    y = axis(max(ratios, default=0.0))
    width, every = 100 / max(len(layers), 1), _every(len(layers))
    columns = []
    for index, (layer, ratio) in enumerate(zip(layers, ratios, strict=True)):
        label = f"{layer.layer}" if index % every == 0 else ""
        title = f"layer {layer.layer}: {layer.largest:.3g} against {layer.median:.3g}"
        columns.append(Column(label, index * width, width, y.at(ratio), None, title))
    return Histogram(y, tuple(columns))


def error_map(grid: ErrorGrid) -> HeatMap:
    """Layers from left to right, kinds of module from top to bottom; strength is the error's square root."""
    kinds = [kind.kind for kind in grid.kinds if any(cell.kind == kind.kind for cell in grid.cells)]
    largest = max((cell.error for cell in grid.cells), default=0.0)
    width, height = 100 / max(grid.layers, 1), 100 / max(len(kinds), 1)
    cells = tuple(
        HeatCell(
            left=cell.layer * width,
            top=kinds.index(cell.kind) * height,
            width=width,
            height=height,
            strength=_PALEST + (1 - _PALEST) * math.sqrt(cell.error / largest if largest else 0.0),
            title=f"layer {cell.layer}, {cell.kind}: {cell.error:.3g}",
        )
        for cell in grid.cells
    )
    labelled = range(0, grid.layers, _every(grid.layers))
    columns = tuple(Tick((layer + 0.5) * width, str(layer)) for layer in labelled)
    rows = tuple(Tick((index + 0.5) * height, kind) for index, kind in enumerate(kinds))
    return HeatMap(rows, columns, cells, largest)


def _every(layers: int) -> int:
    """Of how many layers one has its number below the chart."""
    return max(1, round(_round_step(max(layers, 1) / _TICKS)))


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 2.5, 5 and 10 times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return power * next(step for step in (1, 2, 2.5, 5, 10) if step * power >= least * (1 - 1e-9))


def _original(size: int) -> str:
    return f"the original model: {size / 1e6:.1f} MB, KL 0"


def _short(label: str) -> str:
    return label if len(label) <= _LABEL_LENGTH else f"{label[: _LABEL_LENGTH - 1]}\u2026"


def _labelled(marks: Sequence[Mark]) -> tuple[Mark, ...]:
    """Labels beside their points, towards the middle, moved up where one would cover another."""
    placed: list[Mark] = []
    for mark in sorted(marks, key=lambda mark: -mark.y):
        height = mark.y
        near = [other.label_y for other in placed if abs(other.x - mark.x) < _LABEL_WIDTH]
        if near:
            height = min(height, min(near) - _LABEL_HEIGHT)
        named = mark.kind != "other" or len(marks) <= _ALL_NAMED
        placed.append(
            replace(mark, label=mark.label if named else "", label_y=max(height, 0.0), label_left=mark.x > 50)
        )
    return tuple(placed)


def _octaves(mix: Mix | None, count: int) -> list[float]:
    """The share of prompts in each of `count` powers of two."""
    counts = [0] * count
    for source in mix.sources if mix else ():
        for index, prompts in enumerate(source.octaves):
            counts[index] += prompts
    total = max(sum(counts), 1)
    return [prompts / total for prompts in counts]
