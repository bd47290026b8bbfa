"""What calibration read, beside what validation read, and where the two differ."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gristmill.calibration.samples import SourceSummary, TokenSamples
from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["DataMix", "Mix", "data_mix", "mix_warnings"]

_SHARES_APART = 0.10
_UNSEEN = 0.10
_TIMES_LONGER = 4.0
_KINDS = {
    "L": "letters",
    "M": "letters",
    "N": "digits",
    "P": "punctuation",
    "S": "punctuation",
    "Z": "spaces",
}


@dataclass(frozen=True, slots=True)
class Mix:
    """One side: its files and their text.

    `scripts` gives each script's share of all letters (`Latin`, `Cjk`, ...), `characters` the share of
    letters, digits, punctuation, spaces and others; both cover what was read, chat markup aside.
    """

    sources: tuple[SourceSummary, ...]
    sequences: int
    tokens: int
    scripts: Mapping[str, float]
    characters: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class DataMix:
    """Both sides; None where the recipe has none.

    `unseen` is the share of validation's tokens whose id does not occur in calibration.
    """

    calibration: Mix | None
    validation: Mix | None
    unseen: float | None


def data_mix(
    calibration: TokenSamples | None, validation: Sequence[TokenSamples], tokenizer: Tokenizer
) -> DataMix:
    """Summarize what was read on both sides."""
    held_out = list(validation)
    return DataMix(
        calibration=None if calibration is None else _mix([calibration], tokenizer),
        validation=_mix(held_out, tokenizer) if held_out else None,
        unseen=None if calibration is None or not held_out else _unseen(calibration, held_out),
    )


def mix_warnings(mix: DataMix) -> tuple[str, ...]:
    """A sentence for each way in which validation is not like calibration."""
    if mix.calibration is None or mix.validation is None:
        return ()
    return tuple(_differences(mix.calibration, mix.validation, mix.unseen))


def _differences(calibration: Mix, validation: Mix, unseen: float | None) -> Iterator[str]:
    for title, ours, theirs in (
        ("letters", calibration.scripts, validation.scripts),
        ("characters", calibration.characters, validation.characters),
        ("tokens", _kinds(calibration), _kinds(validation)),
    ):
        for name in sorted({*ours, *theirs}):
            seen, asked = ours.get(name, 0.0), theirs.get(name, 0.0)
            if abs(seen - asked) >= _SHARES_APART:
                yield f"{name}: {seen:.0%} of the {title} in calibration, {asked:.0%} in validation"
    if unseen is not None and unseen >= _UNSEEN:
        yield f"{unseen:.0%} of validation's tokens never occur in calibration"
    seen, asked = _typical_length(calibration), _typical_length(validation)
    if max(seen, asked) >= _TIMES_LONGER * min(seen, asked):
        yield f"a typical prompt has {seen:.0f} tokens in calibration, {asked:.0f} in validation"


def _kinds(mix: Mix) -> dict[str, float]:
    """The share of tokens by kind of file."""
    shares = Counter[str]()
    for source in mix.sources:
        shares[source.kind] += source.tokens
    total = max(shares.total(), 1)
    return {f"{kind} files": tokens / total for kind, tokens in shares.items()}


def _typical_length(mix: Mix) -> float:
    """The mean of the files' median lengths, weighted by their prompts."""
    prompts = sum(source.prompts for source in mix.sources)
    return sum(source.lengths.median * source.prompts for source in mix.sources) / max(prompts, 1)


def _mix(parts: Sequence[TokenSamples], tokenizer: Tokenizer) -> Mix:
    characters = Counter[str]()
    for part in parts:
        for sequence in part.sequences:
            characters.update(tokenizer.decode(sequence, skip_special_tokens=True))
    kinds, scripts = Counter[str](), Counter[str]()
    for character, count in characters.items():
        kind = _kind(character)
        kinds[kind] += count
        if kind == "letters":
            scripts[_script(character)] += count
    return Mix(
        sources=tuple(source for part in parts for source in part.sources),
        sequences=sum(len(part.sequences) for part in parts),
        tokens=sum(part.tokens for part in parts),
        scripts=_shares(scripts),
        characters=_shares(kinds),
    )


def _kind(character: str) -> str:
    return "spaces" if character.isspace() else _KINDS.get(unicodedata.category(character)[0], "others")


def _script(letter: str) -> str:
    """The first word of the letter's Unicode name, which is its script for all but a few symbols."""
    return unicodedata.name(letter, "unnamed").split()[0].capitalize()


def _shares(counts: Counter[str]) -> dict[str, float]:
    total = counts.total()
    return {name: count / total for name, count in counts.most_common()}


def _unseen(calibration: TokenSamples, validation: Sequence[TokenSamples]) -> float:
    known = {token for sequence in calibration.sequences for token in sequence}
    tokens = [token for part in validation for sequence in part.sequences for token in sequence]
    return sum(token not in known for token in tokens) / len(tokens)
