"""Which layer becomes what: a recipe's patterns applied to a model's linears."""

from __future__ import annotations

import difflib
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gristmill.recipes.patterns import matching
from gristmill.recipes.quantize import QuantizeSettings
from gristmill.runtime.errors import RecipeError
from gristmill.runtime.scheme import QuantScheme, ScaleDtype, fitting_group_sizes

__all__ = ["assign_schemes"]


def assign_schemes(
    linear_shapes: Mapping[str, tuple[int, int]],
    settings: QuantizeSettings,
    *,
    head: str = "lm_head",
    scale_dtype: ScaleDtype = "bfloat16",
) -> dict[str, QuantScheme | None]:
    """The scheme of each linear, None where it is skipped.

    `linear_shapes` maps names to (in, out) features. `head` is the output
    projection: patterns may name it whether or not it is among the linears,
    and it must be skipped. Raises RecipeError, before any work, listing every
    pattern that matches nothing, every layer that two patterns disagree on,
    and every group size that does not divide.
    """
    names = [*linear_shapes, *([] if head in linear_shapes else [head])]
    matches = _match_all(names, settings)
    _refuse(
        [
            *_unmatched(matches, names),
            *_skipped_and_overridden(matches, settings),
            *_disagreements(matches, settings),
            *_unskipped_head(matches, settings, head),
        ]
    )
    skipped = {name for pattern in settings.skip for name in matches[pattern]}
    schemes = {
        name: None if name in skipped else _scheme(name, matches, settings, scale_dtype)
        for name in linear_shapes
    }
    if not any(schemes.values()):
        raise RecipeError("quantize.skip", found="every layer", expected="some layer left to quantize")
    for tried in _tried(schemes, settings):
        _refuse(_groups_that_do_not_divide(linear_shapes, tried))
    return schemes


def _match_all(names: Sequence[str], settings: QuantizeSettings) -> dict[str, tuple[str, ...]]:
    patterns = [*settings.skip, *(pattern for override in settings.overrides for pattern in override.match)]
    return {pattern: matching(pattern, names) for pattern in patterns}


def _scheme(
    name: str, matches: Mapping[str, Sequence[str]], settings: QuantizeSettings, scale_dtype: ScaleDtype
) -> QuantScheme:
    values: dict[str, Any] = {
        "bits": settings.bits,
        "group_size": settings.group_size,
        "symmetric": settings.symmetric,
    }
    for override in settings.overrides:
        if any(name in matches[pattern] for pattern in override.match):
            values |= override.changes
    return QuantScheme(
        **values,
        type=settings.type,
        scale_dtype=settings.scale_dtype or scale_dtype,
        activation=settings.activation,
    )


def _tried(
    schemes: Mapping[str, QuantScheme | None], settings: QuantizeSettings
) -> Iterator[Mapping[str, QuantScheme | None]]:
    """`schemes`, or instead of theirs each group size that a search may choose."""
    sizes = () if settings.search is None else settings.search.group_size
    if not sizes:
        yield schemes
    for size in sizes:
        yield {name: scheme and replace(scheme, group_size=size) for name, scheme in schemes.items()}


def _refuse(faults: Iterable[str]) -> None:
    listed = list(faults)
    if len(listed) == 1:
        raise RecipeError(f"quantize: {listed[0]}")
    if listed:
        raise RecipeError(f"quantize: {len(listed)} faults", details=listed)


def _unmatched(matches: Mapping[str, Sequence[str]], names: Sequence[str]) -> Iterator[str]:
    for pattern, matched in matches.items():
        if not matched:
            close = difflib.get_close_matches(pattern, names, n=1, cutoff=0.3)
            example = close[0] if close else names[0]
            yield f'the pattern "{pattern}" matches no layer; the nearest name is {example}'


def _skipped_and_overridden(
    matches: Mapping[str, Sequence[str]], settings: QuantizeSettings
) -> Iterator[str]:
    for skip in settings.skip:
        for override in settings.overrides:
            for pattern in override.match:
                if shared := _shared(matches[skip], matches[pattern]):
                    yield f'{shared} is skipped by "{skip}" and overridden by "{pattern}"'


def _disagreements(matches: Mapping[str, Sequence[str]], settings: QuantizeSettings) -> Iterator[str]:
    for index, first in enumerate(settings.overrides):
        for second in settings.overrides[index + 1 :]:
            differing = [
                key for key, value in first.changes.items() if second.changes.get(key, value) != value
            ]
            for pattern in first.match if differing else ():
                for other in second.match:
                    if shared := _shared(matches[pattern], matches[other]):
                        one, two = first.changes[differing[0]], second.changes[differing[0]]
                        yield (
                            f'{shared} gets {differing[0]} {one} from "{pattern}" and {two} from "{other}"'
                        )


def _shared(first: Sequence[str], second: Sequence[str]) -> str:
    """The layers in both, as text: the first by name, the others counted."""
    others = frozenset(second)
    both = [name for name in first if name in others]
    return "" if not both else both[0] if len(both) == 1 else f"{both[0]} (and {len(both) - 1} more)"


def _unskipped_head(
    matches: Mapping[str, Sequence[str]], settings: QuantizeSettings, head: str
) -> Iterator[str]:
    if not any(head in matches[pattern] for pattern in settings.skip):
        yield f'{head} is not skipped; the output head stays as it is in this version: add "{head}" to skip'


def _groups_that_do_not_divide(
    linear_shapes: Mapping[str, tuple[int, int]], schemes: Mapping[str, QuantScheme | None]
) -> Iterator[str]:
    layers: dict[int, list[str]] = defaultdict(list)
    for name, scheme in schemes.items():
        if scheme is not None and scheme.group_size != -1:
            layers[scheme.group_size].append(name)
    for size, names in layers.items():
        failing = [name for name in names if linear_shapes[name][0] % size]
        if failing:
            fitting = fitting_group_sizes(math.gcd(*(linear_shapes[name][0] for name in names)))
            yield (
                f"group size {size} does not divide the {linear_shapes[failing[0]][0]} inputs of {failing[0]}"
                f" ({len(failing)} of {len(names)} layers); fitting all: {', '.join(map(str, fitting))}"
            )
