"""Golden prompts that must be refused, each with the file and the rule named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from gristmill.artifacts.golden import read_golden, write_golden
from gristmill.runtime.engine_folder import GoldenPrompt
from gristmill.runtime.errors import ArtifactError
from gristmill.runtime.files import canonical_json

PROMPT = GoldenPrompt((1, 5, 3), np.ones((2, 4), np.float32), (3,))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_golden(tmp_path, [PROMPT])
    return tmp_path


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("token_ids", [], "token_ids: .*at least 1"),
        ("token_ids", [-1], "greater than or equal to 0"),
        ("token_ids", [2**31], "less than"),
        ("rows", 0, "rows: .*greater than or equal to 1"),
        ("rows", 3, "logits; .*expected float32 \\(3, vocabulary\\)"),
        ("mood", 1, "mood: Unexpected"),
    ],
)
def test_a_wrong_prompt_is_refused(folder: Path, key: str, value: object, message: str) -> None:
    document = json.loads((folder / "prompts.json").read_bytes())
    document["prompts"][0][key] = value
    (folder / "prompts.json").write_bytes(canonical_json(document))
    with pytest.raises(ArtifactError, match=message):
        read_golden(folder)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "tensors; found \\[\\]"),
        ({"prompt.000": np.ones((2, 4), np.float16)}, "found float16 \\(2, 4\\)"),
        ({"prompt.000": np.ones((1, 4), np.float32)}, "found float32 \\(1, 4\\)"),
        ({"prompt.000": np.full((2, 4), np.nan, np.float32)}, "expected finite rows"),
        (
            {"prompt.000": np.ones((2, 4), np.float32), "x": np.ones(1)},
            "tensors; found \\['prompt.000', 'x'\\]",
        ),
    ],
)
def test_wrong_logits_are_refused(folder: Path, tensors: dict[str, np.ndarray], message: str) -> None:
    save_file(tensors, folder / "logits.safetensors")
    with pytest.raises(ArtifactError, match=message):
        read_golden(folder)


def test_more_rows_than_tokens_are_refused(tmp_path: Path) -> None:
    write_golden(tmp_path, [GoldenPrompt((1,), np.ones((2, 4), np.float32), ())])
    with pytest.raises(ArtifactError, match="no more than the prompt has tokens"):
        read_golden(tmp_path)


@pytest.mark.parametrize("size", [0, 7, 40, 100])
def test_logits_cut_short_are_refused(folder: Path, size: int) -> None:
    path = folder / "logits.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ArtifactError, match=r"logits\.safetensors: not a safetensors file"):
        read_golden(folder)


@pytest.mark.parametrize("name", ["prompts.json", "logits.safetensors"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ArtifactError, match=f"{name}: missing"):
        read_golden(folder)
