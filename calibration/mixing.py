"""Mix several sources of prompts by their shares, drawing no more from each than is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gristmill.calibration.packing import Piece

__all__ = ["Draw", "apportion", "draw_shares"]


@dataclass(frozen=True, slots=True)
class Draw:
    """What one source gave.

    `wanted` is what its share asks for, `quota` what it had to give in the end:
    less where it ran out, more where others did. `size` is the size of `pieces`,
    at least `quota` unless all sources ran out.
    """

    pieces: list[Piece]
    wanted: int
    quota: int
    size: int


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Split `total` in proportion to positive weights; whole numbers that add up (largest remainder)."""
    exact = [total * weight / sum(weights) for weight in weights]
    parts = [int(part) for part in exact]
    by_remainder = sorted(range(len(parts)), key=lambda index: (parts[index] - exact[index], index))
    for index in by_remainder[: total - sum(parts)]:
        parts[index] += 1
    return parts


def draw_shares(
    sources: Sequence[Iterator[Piece]],
    shares: Sequence[float],
    total: int,
    size: Callable[[Piece], int],
) -> list[Draw]:
    """Draw pieces until their sizes make `total`, each source by its share.

    What a source lacks the others give, again by their shares. If all run out,
    the draws add up to less than `total`.
    """
    drawn: list[list[Piece]] = [[] for _ in sources]
    sizes = [0] * len(sources)
    wanted = apportion(total, shares)
    quotas = list(wanted)
    open_sources = list(range(len(sources)))
    while open_sources:
        for index in open_sources:
            while sizes[index] < quotas[index] and (piece := next(sources[index], None)) is not None:
                drawn[index].append(piece)
                sizes[index] += size(piece)
        empty = [index for index in open_sources if sizes[index] < quotas[index]]
        if not empty:
            break
        for index in empty:
            quotas[index] = sizes[index]
            open_sources.remove(index)
        rest = total - sum(quotas[index] for index in range(len(sources)) if index not in open_sources)
        for index, quota in zip(
            open_sources, apportion(rest, [shares[index] for index in open_sources]), strict=True
        ):
            quotas[index] = quota
    return [Draw(*parts) for parts in zip(drawn, wanted, quotas, sizes, strict=True)]
