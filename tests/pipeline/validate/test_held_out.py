"""Held-out files become windows in their own order, and what calibration has used is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gristmill.calibration.prompts import PromptSettings, PromptSource, load_calibration
from gristmill.calibration.samples import TokenSamples
from gristmill.pipeline.validate.data import load_held_out
from gristmill.pipeline.validate.overlap import refuse_shared_records, shared_text
from gristmill.recipes import ValidationData, load_recipe
from gristmill.runtime.errors import PromptError
from gristmill.runtime.tokenizer import Tokenizer, load_tokenizer

TEXT = "\n\n".join(
    f"Paragraph {i} tells of day {i} of the journey along the river, of what was seen and said on the way."
    for i in range(60)
)


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Tokenizer:
    return load_tokenizer(tiny_llama)


def data(path: Path, **settings: int) -> ValidationData:
    return ValidationData.model_validate({"path": path, **settings})


def calibration(path: Path, tokenizer: Tokenizer) -> TokenSamples:
    return load_calibration(PromptSettings((PromptSource(path),), samples=4, max_tokens=64), tokenizer)


def text_file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_text_is_cut_in_its_own_order(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = text_file(tmp_path, "a.txt", TEXT)
    (held_out,) = load_held_out([data(path, window=32, tokens=100)], tokenizer)
    ids = tokenizer.encode(TEXT, add_special_tokens=True)
    assert held_out.name == "a.txt"
    assert held_out.windows == tuple(tuple(ids[start : start + 32]) for start in (0, 32, 64))


def test_rows_of_token_ids_are_taken_as_they_are(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = [[1, 2, 3, 4], [5, 6, 7, 8]]
    path = text_file(tmp_path, "rows.json", json.dumps(rows))
    (held_out,) = load_held_out([data(path, window=4, tokens=8)], tokenizer)
    assert held_out.windows == ((1, 2, 3, 4), (5, 6, 7, 8))


def test_a_short_file_gives_the_windows_it_has(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = text_file(tmp_path, "a.txt", TEXT)
    (held_out,) = load_held_out([data(path, window=32, tokens=1_000_000)], tokenizer)
    assert len(held_out.windows) == len(tokenizer.encode(TEXT, add_special_tokens=True)) // 32


def test_a_file_shorter_than_a_window_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = text_file(tmp_path, "a.txt", "too short")
    with pytest.raises(PromptError, match="too few"):
        load_held_out([data(path, window=32, tokens=64)], tokenizer)


def test_text_that_calibration_has_used_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = text_file(tmp_path, "a.txt", TEXT)
    held_out = load_held_out([data(path, window=64, tokens=1280)], tokenizer)
    with pytest.raises(PromptError, match=r"not held out: a\.txt shares \d+ of \d+ records"):
        refuse_shared_records(held_out, calibration(path, tokenizer))


def test_other_text_passes_and_its_overlap_is_counted(tmp_path: Path, tokenizer: Tokenizer) -> None:
    used = calibration(text_file(tmp_path, "a.txt", TEXT), tokenizer)
    path = text_file(tmp_path, "b.txt", TEXT.replace("Paragraph", "Chapter"))
    held_out = load_held_out([data(path, window=64, tokens=1280)], tokenizer)
    refuse_shared_records(held_out, used)
    (overlap,) = shared_text(held_out, used)
    assert 0 < overlap < 1
    assert shared_text(held_out, None) == (0.0,)


def test_the_demo_is_validated_on_data_it_was_not_calibrated_with(tokenizer: Tokenizer) -> None:
    recipe = load_recipe("demo")
    assert recipe.calibration is not None
    assert recipe.validation is not None
    prompts = zip(recipe.calibration.prompts, recipe.calibration.shares, strict=True)
    used = load_calibration(
        PromptSettings(
            tuple(PromptSource(prompt.path, share, prompt.kind) for prompt, share in prompts),
            samples=recipe.calibration.samples,
            max_tokens=recipe.calibration.max_tokens,
            seed=recipe.calibration.seed,
        ),
        tokenizer,
    )
    held_out = load_held_out(recipe.validation.data, tokenizer)
    assert [len(part.windows) for part in held_out] == [16, 16]
    refuse_shared_records(held_out, used)
