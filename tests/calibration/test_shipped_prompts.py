"""The prompts that ship with the product: enough, openly licensed, and apart from the held-out data."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest

from gristmill.calibration.overlap import ngram_overlap, record_overlap
from gristmill.calibration.prompts import PromptSettings, PromptSource, load_calibration
from gristmill.calibration.samples import TokenSamples
from gristmill.runtime.tokenizer import Tokenizer, load_tokenizer

FOLDER = Path(str(files("gristmill.recipes"))) / "files" / "prompts"
CALIBRATION = ["chat", "code", "sql", "summarize", "tool_call"]


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Tokenizer:
    return load_tokenizer(tiny_llama)


def load_all(tokenizer: Tokenizer, *names: str) -> TokenSamples:
    sources = tuple(PromptSource(FOLDER / name) for name in names)
    return load_calibration(PromptSettings(sources, samples=1_000, allow_fewer=True), tokenizer)


@pytest.mark.parametrize("name", CALIBRATION[:3] + CALIBRATION[4:])
def test_each_task_can_fill_a_quarter_of_128_samples(tokenizer: Tokenizer, name: str) -> None:
    assert len(load_all(tokenizer, f"{name}.jsonl").sequences) >= 32


@pytest.mark.parametrize("name", ["heldout_chat.jsonl", "heldout_text.txt"])
def test_held_out_data_fill_sixteen_windows(tokenizer: Tokenizer, name: str) -> None:
    assert len(load_all(tokenizer, name).sequences) >= 16


@pytest.mark.parametrize(("name", "most"), [("heldout_chat.jsonl", 0.11), ("heldout_text.txt", 0.0)])
def test_held_out_data_are_apart_from_calibration(tokenizer: Tokenizer, name: str, most: float) -> None:
    """What chats share are the runs that the template puts before each."""
    calibration = load_all(tokenizer, *(f"{task}.jsonl" for task in CALIBRATION))
    held_out = load_all(tokenizer, name)
    assert record_overlap(calibration, held_out) == frozenset()
    assert ngram_overlap(calibration.sequences, held_out.sequences) <= most


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.jsonl")), ids=lambda path: path.stem)
def test_every_record_is_permissively_licensed_and_named(path: Path) -> None:
    attribution = (FOLDER / "ATTRIBUTION.md").read_text()
    assert path.name in attribution
    for line in path.read_text().splitlines():
        record = json.loads(line)
        assert record["license"] in {"MIT", "BSD-3-Clause", "Apache-2.0"}
        assert record["source"]
