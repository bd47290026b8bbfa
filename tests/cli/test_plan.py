"""`plan`: what a build makes and takes, from shapes and data alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from gristmill.pipeline import disk
from tests.cli.conftest import Run


def recipe_file(folder: Path, model: Path) -> Path:
    chats = folder / "chats.jsonl"
    chat = {"messages": [{"role": "user", "content": "Why? " * 99}], "reference": "Because."}
    chats.write_text("".join(json.dumps({**chat, "id": n}) + "\n" for n in range(8)))
    path = folder / "recipe.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "name": "tiny",
                "model": str(model),
                "calibration": {"prompts": [{"path": str(chats)}], "samples": 4, "max_tokens": 64},
                "quantize": {"scheme": "W4A16", "method": "gptq", "group_size": 32},
            }
        )
    )
    return path


def test_it_tells_sizes_and_data_and_builds_nothing(
    gristmill: Run, tmp_path: Path, tiny_llama: Path, store: Path
) -> None:
    told = gristmill("plan", recipe_file(tmp_path, tiny_llama), "--json")
    document = json.loads(told.out)
    assert told.code == 0
    assert document["model"]["layers"] == 3
    assert document["quantize"] == {"linears": {"W4A16_G32": 21}, "bits_per_weight": 4.5}
    assert document["calibration"]["tokens"] > 0
    assert document["memory"]["total"] > document["memory"]["quantize"] > 0
    assert document["disk"]["total"] > document["disk"]["checkpoints"] > 0
    assert not (store / "stages" / "quantize").exists()
    assert json.loads(gristmill("list", "--json").out) == []


def test_its_lines_say_the_same(gristmill: Run, tmp_path: Path, tiny_llama: Path) -> None:
    lines = gristmill("plan", recipe_file(tmp_path, tiny_llama)).out.splitlines()
    names = [line.split()[0] for line in lines]
    assert names == ["model", "quantize", "calibrate", "validate", "memory", "disk", "free"]
    assert "21 linears W4A16_G32; 4.50 bits a weight" in lines[1]


def test_a_limit_that_is_too_small_ends_it_as_it_would_a_build(
    gristmill: Run, tmp_path: Path, tiny_llama: Path
) -> None:
    recipe = recipe_file(tmp_path, tiny_llama)
    planned, built = (gristmill(name, recipe, "--memory", "100MB") for name in ("plan", "build"))
    assert (planned.code, built.code) == (2, 2)
    assert planned.err == built.err.splitlines(keepends=True)[-1]


def test_a_full_disk_ends_it_too(
    gristmill: Run, tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "free_disk", lambda folder: 1_000)
    outcome = gristmill("plan", recipe_file(tmp_path, tiny_llama))
    assert outcome.code == 3
    assert "disk space for" in outcome.err
