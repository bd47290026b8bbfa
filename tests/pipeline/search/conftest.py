"""The tiny model with its samples, opened for a search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gristmill.calibration.samples import TokenSamples, samples_digest
from gristmill.pipeline.model import BuildModel, open_model
from gristmill.pipeline.quantize.block import QuantizeSettings
from gristmill.pipeline.quantize.settings import quantize_settings
from gristmill.recipes import Recipe, parse_recipe

SEQUENCES = tuple(tuple((11 * row + 5 * column * row) % 700 for column in range(24)) for row in range(1, 13))


@dataclass(frozen=True, slots=True, eq=False)
class Tiny:
    """What a search is given."""

    recipe: Recipe
    model: BuildModel
    samples: TokenSamples
    settings: QuantizeSettings


OpenTiny = Callable[[str], Tiny]


@pytest.fixture
def open_tiny(tmp_path: Path, tiny_llama: Path) -> OpenTiny:
    """The tiny model under a `quantize` block in one line."""
    (tmp_path / "prompts.jsonl").touch()
    digest = samples_digest(SEQUENCES)
    samples = TokenSamples(SEQUENCES, digest, 12, sum(map(len, SEQUENCES)), frozenset(), ())

    def opened(quantize: str) -> Tiny:
        text = (
            f"name: tiny\nmodel: {tiny_llama}\n"
            f"calibration: {{prompts: [{{path: prompts.jsonl}}]}}\nquantize: {{{quantize}}}\n"
        )
        recipe = parse_recipe(text, "tiny.yaml", tmp_path)
        model = open_model(recipe)
        return Tiny(recipe, model, samples, quantize_settings(recipe, model.schemes))

    return opened
