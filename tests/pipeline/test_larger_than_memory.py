"""A model that would not fit is quantized and validated piece by piece, in the memory that was planned."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.large_model import build_limited, random_llama

LIMIT = 912_000_000
"""Between what the build takes with the whole model in memory, and without."""


def test_a_build_that_the_whole_model_would_not_fit_keeps_its_limit(tmp_path: Path) -> None:
    model = random_llama(tmp_path / "model", layers=8, hidden=512, intermediate=2048)
    limited = build_limited(model, tmp_path, LIMIT)
    assert limited.returncode == 0, limited.errors
    assert " streamed" in limited.errors
    assert limited.resident <= LIMIT
