"""A model that would not fit is quantized and validated piece by piece, in the memory that was planned."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.large_model import build_limited, random_llama
from tests.command_line import CommandLine

LIMIT = 920_000_000


def test_a_limited_build_keeps_its_limit_and_ends_in_the_same_artifact_as_a_free_one(tmp_path: Path) -> None:
    model = random_llama(tmp_path / "model", layers=10, hidden=512, intermediate=2048)
    limited = build_limited(model, tmp_path, LIMIT)
    assert limited.returncode == 0, limited.errors
    assert " streamed" in limited.errors
    free = CommandLine(tmp_path / "other store").json("build", tmp_path / "recipe.yaml")
    assert free["digest"] in limited.output
