"""Held-out data as windows of tokens, read by the same loader as calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.calibration.prompts import PromptSettings, PromptSource, load_calibration
from gristmill.calibration.samples import TokenSamples
from gristmill.recipes import ValidationData
from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["HeldOut", "load_held_out", "longest_window"]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One held-out data set, at least one window; each window is read by itself."""

    name: str
    samples: TokenSamples

    @property
    def windows(self) -> tuple[tuple[int, ...], ...]:
        """The token ids of each window."""
        return self.samples.sequences


def load_held_out(data: Sequence[ValidationData], tokenizer: Tokenizer) -> tuple[HeldOut, ...]:
    """The first `tokens` tokens of each file, in the file's order, cut into whole windows.

    Text is cut as it stands, chats go through the template and are packed,
    rows of token ids are taken as they are (at most `window` tokens each). A
    shorter file gives the windows it has. Raises PromptError with every fault
    of a file in its details.
    """
    return tuple(HeldOut(entry.path.name, _samples(entry, tokenizer)) for entry in data)


def longest_window(held_out: Sequence[HeldOut]) -> int:
    """Tokens of the longest window of all."""
    return max(len(window) for entry in held_out for window in entry.windows)


def _samples(entry: ValidationData, tokenizer: Tokenizer) -> TokenSamples:
    settings = PromptSettings(
        sources=(PromptSource(entry.path, kind=entry.kind),),
        samples=entry.tokens // entry.window,
        max_tokens=entry.window,
        shuffle=False,
        allow_fewer=True,
    )
    return load_calibration(settings, tokenizer)
