"""Golden prompts on disk: the same bytes each time, the same prompts back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gristmill.artifacts.golden import read_golden, write_golden
from gristmill.runtime.engine_folder import GoldenPrompt
from tests.little_memory import little_memory

PROMPTS = (
    GoldenPrompt((1, 5, 3), np.array([[0.5, -1, 2, 0], [1, 0.25, -3, 4]], np.float32), (3, 0)),
    GoldenPrompt((2,), np.array([[1e-30, 3e38, -0.0, 1 / 3]], np.float32), ()),
)


def test_golden_prompts_survive_the_round_trip_to_the_bit(tmp_path: Path) -> None:
    write_golden(tmp_path, PROMPTS)
    for prompt, found in zip(PROMPTS, read_golden(tmp_path), strict=True):
        assert (found.token_ids, found.continuation) == (prompt.token_ids, prompt.continuation)
        assert found.logits.dtype == np.float32
        assert found.logits.tobytes() == prompt.logits.tobytes()


def test_reading_takes_the_memory_of_the_files_not_of_the_largest_allowed(tmp_path: Path) -> None:
    write_golden(tmp_path, PROMPTS)
    with little_memory(16):
        assert len(read_golden(tmp_path)) == 2


@pytest.mark.parametrize("name", ["prompts.json", "logits.safetensors"])
def test_the_sample_prompt_keeps_its_bytes(tmp_path: Path, sample_folder: Path, name: str) -> None:
    write_golden(tmp_path, PROMPTS[:1])
    assert (tmp_path / name).read_bytes() == (sample_folder / "golden" / name).read_bytes()


def test_a_strided_view_is_written_like_its_copy(tmp_path: Path) -> None:
    wide = np.arange(16, dtype=np.float32).reshape(4, 4)
    write_golden(tmp_path / "view", [GoldenPrompt((1, 2), wide[::2, ::2], ())])
    write_golden(tmp_path / "copy", [GoldenPrompt((1, 2), wide[::2, ::2].copy(), ())])
    names = ("prompts.json", "logits.safetensors")
    view, copy = ([(tmp_path / kind / name).read_bytes() for name in names] for kind in ("view", "copy"))
    assert view == copy
