"""Ready-made token ids are taken as they are, or refused row by row."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from gristmill.calibration.prompt_files import FileFault
from gristmill.calibration.token_rows import read_token_rows

ROWS = [[1, 2, 3], [4, 5, 6]]


def write_rows(folder: Path, suffix: str) -> Path:
    path = folder / f"rows{suffix}"
    match suffix:
        case ".npy":
            np.save(path, np.asarray(ROWS, dtype=np.int64))
        case ".safetensors":
            save_file({"input_ids": np.asarray(ROWS, dtype=np.int32)}, path)
        case ".json":
            path.write_text(json.dumps(ROWS))
        case _:
            path.write_text("\n".join(json.dumps(row) for row in ROWS))
    return path


@pytest.mark.parametrize("suffix", [".npy", ".safetensors", ".json", ".jsonl"])
def test_every_container_gives_the_same_rows(tmp_path: Path, suffix: str) -> None:
    pieces, faults = read_token_rows(write_rows(tmp_path, suffix), vocab_size=10, max_tokens=8)
    assert [list(piece.ids) for piece in pieces] == ROWS
    assert faults == []


def test_equal_rows_have_one_name(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("[1, 2]\n[1, 2]\n[2, 1]\n")
    pieces, _ = read_token_rows(path, 10, 8)
    assert len({piece.records for piece in pieces}) == 2


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("[1, 10]", "token id 10 is not in the vocabulary of 10"),
        ("[-1, 2]", "token id -1"),
        ("[1, 2.5]", "not a list of token ids"),
        ("[true, 1]", "not a list of token ids"),
        ('"abc"', "not a list of token ids"),
        ("{}", "not a list of token ids"),
        ("[1, 2", "not valid JSON"),
        ("[1]", "a row of 1 tokens"),
        ("[1, 2, 3, 4, 5]", "a row of 5 tokens, between 2 and max_tokens = 4"),
    ],
)
def test_a_wrong_row_is_named_with_its_reason(tmp_path: Path, row: str, reason: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"[1, 2]\n{row}\n")
    pieces, faults = read_token_rows(path, vocab_size=10, max_tokens=4)
    assert len(pieces) == 1
    assert [(fault.line, reason in fault.reason) for fault in faults] == [(2, True)]


@pytest.mark.parametrize("array", [np.zeros((2, 3), np.float32), np.zeros(3, np.int32)])
def test_an_array_of_another_kind_is_refused(
    tmp_path: Path, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]
) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(FileFault, match=r"an integer array \[rows, tokens\] is expected"):
        read_token_rows(tmp_path / "a.npy", 10, 8)


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.asarray([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(FileFault, match="not an array of token ids"):
        read_token_rows(tmp_path / "a.npy", 10, 8)
