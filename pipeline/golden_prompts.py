"""Which prompts an artifact proves itself with."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.calibration.prompts import PromptSettings, PromptSource, load_calibration
from gristmill.pipeline.validate.data import HeldOut
from gristmill.recipes.schema import Recipe
from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["golden_prompts"]

_GOLDEN_TOKENS = 48
_SHORT_TOKENS = 12  # the one that every start repeats: a large model needs 85 ms a pass
_GOLDEN_TEXT = (
    "The mill stands by the river, and its wheel has turned for two hundred years.",
    "SELECT name, price FROM products WHERE price > 10 ORDER BY price DESC;",
    "def mean(values):\n    return sum(values) / len(values)\n",
    "Question: What is the capital of France?\nAnswer:",
)


def golden_prompts(
    recipe: Recipe, tokenizer: Tokenizer, held_out: Sequence[HeldOut]
) -> tuple[tuple[int, ...], ...]:
    """Short prompts for the artifact's self-test: the recipe's own, else the start of held-out windows.

    Without prompts of the recipe's own, the first is very short.
    """
    count = recipe.golden.count
    if recipe.golden.prompts is not None:
        settings = PromptSettings(
            sources=(PromptSource(recipe.golden.prompts),),
            samples=count,
            max_tokens=_GOLDEN_TOKENS,
            pack=False,
            shuffle=False,
            allow_fewer=True,
        )
        return load_calibration(settings, tokenizer).sequences
    windows = [window[:_GOLDEN_TOKENS] for entry in held_out for window in entry.windows]
    if not windows:
        windows = [tuple(tokenizer.encode(text, add_special_tokens=True)) for text in _GOLDEN_TEXT]
    step = max(len(windows) // count, 1)
    first, *others = windows[::step][:count]
    return (first[:_SHORT_TOKENS], *others)
