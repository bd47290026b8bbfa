"""From prompt files to token samples: read, check, mix by share, pack."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gristmill.calibration.mixing import Draw, apportion, draw_shares
from gristmill.calibration.packing import Piece, pack, trim
from gristmill.calibration.pieces import PieceSource, read_pieces
from gristmill.calibration.prompt_files import Fault
from gristmill.calibration.samples import (
    SourceSummary,
    TokenSamples,
    length_octaves,
    length_quantiles,
    samples_digest,
)
from gristmill.runtime.errors import PromptError
from gristmill.runtime.prompt_kind import PromptKind
from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["PromptSettings", "PromptSource", "load_calibration"]


@dataclass(frozen=True, slots=True)
class PromptSource:
    """One file. `share` is its weight beside the others; `kind` None is told from the suffix."""

    path: Path
    share: float = 1.0
    kind: PromptKind | None = None


@dataclass(frozen=True, slots=True)
class PromptSettings:
    """Which prompts, and how many tokens of them.

    samples, max_tokens  sequences and the tokens of each; a longer prompt is cut
    pack                 fill each sequence with several prompts; False keeps one prompt a sequence, ragged
    shuffle              False keeps the order of the files: plain text then gives its first tokens
    allow_fewer          take as many whole samples as there are instead of refusing
    """

    sources: tuple[PromptSource, ...]
    samples: int = 64
    max_tokens: int = 512
    seed: int = 0
    pack: bool = True
    shuffle: bool = True
    add_generation_prompt: bool = False
    allow_fewer: bool = False


def load_calibration(settings: PromptSettings, tokenizer: Tokenizer) -> TokenSamples:
    """Make token samples from prompt files; the same files and settings give the same digest.

    Needs no model, only its tokenizer. Raises PromptError: with all faults of
    all files in `details`, or because there are fewer tokens than asked for.
    """
    _check(settings)
    sources = _read_all(settings, tokenizer)
    draws = _draw(settings, sources)
    kept = [_kept(settings, source, draw) for source, draw in zip(sources, draws, strict=True)]
    sequences = _sequences(settings, sources, kept)
    if len(sequences) < settings.samples and not (sequences and settings.allow_fewer):
        raise _too_few(settings, kept)
    drawn = sum(len(piece.ids) for pieces in kept for piece in pieces)
    named = zip((source.path.name for source in settings.sources), sources, kept, strict=True)
    return TokenSamples(
        sequences=tuple(sequences),
        digest=samples_digest(sequences),
        prompts=sum(len(pieces) for pieces in kept),
        tokens=sum(len(sequence) for sequence in sequences),
        records=frozenset(name for pieces in kept for piece in pieces for name in piece.records),
        sources=tuple(_summary(name, source.kind, pieces, drawn) for name, source, pieces in named if pieces),
        warnings=tuple(_warnings(settings, sources, draws, len(sequences))),
    )


def _check(settings: PromptSettings) -> None:
    if not settings.sources:
        raise PromptError("no prompt files", hint="name at least one")
    for name, value, least in (("samples", settings.samples, 1), ("max_tokens", settings.max_tokens, 2)):
        if value < least:
            raise PromptError(f"{name} is too small", found=value, expected=f"at least {least}")
    for source in settings.sources:
        if not 0 < source.share < math.inf:
            raise PromptError(
                f"the share of {source.path} is wrong", found=source.share, expected="more than 0"
            )


def _read_all(settings: PromptSettings, tokenizer: Tokenizer) -> list[PieceSource]:
    sources: list[PieceSource] = []
    faults: list[Fault] = []
    for index, wanted in enumerate(settings.sources):
        source, found = read_pieces(
            wanted.path,
            wanted.kind,
            tokenizer,
            max_tokens=settings.max_tokens,
            add_generation_prompt=settings.add_generation_prompt,
            rng=random.Random(f"{settings.seed}/{index}") if settings.shuffle else None,
        )
        faults += found
        sources += [] if source is None else [source]
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise PromptError(f"{faults[0]}{more}", details=[str(fault) for fault in faults])
    return sources


def _draw(settings: PromptSettings, sources: Sequence[PieceSource]) -> list[Draw]:
    """Draw from all: ready-made rows fill whole samples, the other sources share the rest by tokens."""
    shares = [source.share for source in settings.sources]
    rows = [index for index, source in enumerate(sources) if source.kind == "tokens"]
    others = [index for index, source in enumerate(sources) if source.kind != "tokens"]
    by_share = apportion(settings.samples, shares)
    row_samples = sum(by_share[index] for index in rows) if others else settings.samples

    def draw(chosen: Sequence[int], total: int, size: Callable[[Piece], int]) -> dict[int, Draw]:
        found = draw_shares([sources[i].pieces for i in chosen], [shares[i] for i in chosen], total, size)
        return dict(zip(chosen, found, strict=True))

    draws = draw(rows, row_samples, _one)
    rest = settings.samples - sum(draw.quota for draw in draws.values())
    draws |= draw(others, rest * settings.max_tokens, _tokens) if settings.pack else draw(others, rest, _one)
    return [draws[index] for index in range(len(sources))]


def _one(_: Piece) -> int:
    return 1


def _tokens(piece: Piece) -> int:
    return len(piece.ids)


def _kept(settings: PromptSettings, source: PieceSource, draw: Draw) -> list[Piece]:
    packed = settings.pack and source.kind != "tokens"
    return trim(draw.pieces, draw.quota) if packed else draw.pieces


def _sequences(
    settings: PromptSettings, sources: Sequence[PieceSource], kept: Sequence[Sequence[Piece]]
) -> list[tuple[int, ...]]:
    rows = [
        piece
        for source, pieces in zip(sources, kept, strict=True)
        if source.kind == "tokens"
        for piece in pieces
    ]
    mixed = [
        piece
        for source, pieces in zip(sources, kept, strict=True)
        if source.kind != "tokens"
        for piece in pieces
    ]
    if settings.shuffle:
        random.Random(f"{settings.seed}/mix").shuffle(mixed)
    laid = pack(mixed, settings.max_tokens) if settings.pack else [piece.ids for piece in mixed]
    return [*laid, *(piece.ids for piece in rows)]


def _summary(name: str, kind: PromptKind, pieces: Sequence[Piece], total: int) -> SourceSummary:
    tokens = sum(len(piece.ids) for piece in pieces)
    lengths = [piece.length for piece in pieces]
    return SourceSummary(
        name=name,
        kind=kind,
        prompts=len(pieces),
        tokens=tokens,
        share=tokens / total,
        truncated=sum(piece.cut for piece in pieces),
        lengths=length_quantiles(lengths),
        octaves=length_octaves(lengths),
    )


def _warnings(
    settings: PromptSettings, sources: Sequence[PieceSource], draws: Sequence[Draw], samples: int
) -> Iterator[str]:
    for wanted, source, draw in zip(settings.sources, sources, draws, strict=True):
        yield from source.warnings
        if draw.quota < draw.wanted and not settings.allow_fewer:
            unit = "tokens" if settings.pack and source.kind != "tokens" else "prompts"
            yield f"{wanted.path.name} holds {draw.quota} {unit} of the {draw.wanted} that its share asks for"
    if samples < settings.samples:
        yield f"{samples} samples of {settings.max_tokens} tokens instead of {settings.samples}"


def _too_few(settings: PromptSettings, kept: Sequence[Sequence[Piece]]) -> PromptError:
    tokens = sum(len(piece.ids) for pieces in kept for piece in pieces)
    prompts = sum(len(pieces) for pieces in kept)
    if settings.pack:
        found, fit = f"{tokens} tokens in {prompts} prompts", tokens // settings.max_tokens
        total = settings.samples * settings.max_tokens
        expected = f"{total} tokens for {settings.samples} samples of {settings.max_tokens}"
    else:
        found, fit = f"{prompts} prompts", prompts
        expected = f"{settings.samples} samples of one prompt each"
    return PromptError(
        "too few prompts",
        found=found,
        expected=expected,
        hint=f"add prompts or ask for at most {fit} samples",
    )
