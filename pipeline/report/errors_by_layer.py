"""Errors of all linears, by decoder layer and by kind of module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

__all__ = ["Cell", "ErrorGrid", "KindErrors", "error_grid"]


@dataclass(frozen=True, slots=True)
class Cell:
    """The mean error of the linears of one kind in one layer: one linear, or all experts together."""

    layer: int
    kind: str
    error: float


@dataclass(frozen=True, slots=True)
class KindErrors:
    """All linears of one kind."""

    kind: str
    linears: int
    mean: float
    largest: float
    worst: str


@dataclass(frozen=True, slots=True)
class ErrorGrid:
    """`cells` by layer and kind; linears outside of the layers only in `kinds`. Order is the model's."""

    layers: int
    kinds: tuple[KindErrors, ...]
    cells: tuple[Cell, ...]


def error_grid(errors: Mapping[str, float]) -> ErrorGrid:
    """Sort out the errors of linears named as in a checkpoint, at least one."""
    by_kind: dict[str, list[str]] = defaultdict(list)
    by_cell: dict[tuple[int, str], list[float]] = defaultdict(list)
    for name, error in errors.items():
        layer, kind = _place(name)
        by_kind[kind].append(name)
        if layer is not None:
            by_cell[layer, kind].append(error)
    return ErrorGrid(
        layers=1 + max((layer for layer, _ in by_cell), default=-1),
        kinds=tuple(_kind_errors(kind, names, errors) for kind, names in sorted(by_kind.items())),
        cells=tuple(Cell(layer, kind, fmean(found)) for (layer, kind), found in sorted(by_cell.items())),
    )


def _place(name: str) -> tuple[int | None, str]:
    """The layer and the kind: `model.layers.3.mlp.experts.7.up_proj` is (3, `mlp.experts.*.up_proj`)."""
    parts = name.split(".")
    at = next((index for index, part in enumerate(parts) if part.isdigit()), None)
    if at is None:
        return None, name
    return int(parts[at]), ".".join("*" if part.isdigit() else part for part in parts[at + 1 :])


def _kind_errors(kind: str, names: list[str], errors: Mapping[str, float]) -> KindErrors:
    worst = max(names, key=lambda name: errors[name])
    return KindErrors(kind, len(names), fmean(errors[name] for name in names), errors[worst], worst)
