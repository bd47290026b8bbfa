"""Read ready-made token ids: rows that are used as they are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from gristmill.calibration.packing import Piece
from gristmill.calibration.prompt_files import Fault, FileFault, read_bytes, read_lines

__all__ = ["read_token_rows"]


def read_token_rows(path: Path, vocab_size: int, max_tokens: int) -> tuple[list[Piece], list[Fault]]:
    """Rows of token ids and a fault for each row that can't be used. Raises FileFault.

    The file is JSON lines of lists, one JSON list of lists, or an integer
    array [rows, tokens] as .npy or as the only tensor of a .safetensors.
    """
    pieces: list[Piece] = []
    faults: list[Fault] = []
    for line, row in _rows(path):
        reason = row if isinstance(row, str) else _fault(row, vocab_size, max_tokens)
        if reason is not None:
            faults.append(Fault(path, line, reason))
        elif isinstance(row, list):
            pieces.append(Piece(tuple(row), len(row), False, frozenset({_row_hash(row)})))
    return pieces, faults


def _rows(path: Path) -> Iterator[tuple[int, object]]:
    suffix = (path.with_suffix("") if path.suffix == ".gz" else path).suffix
    if suffix == ".jsonl":
        for number, line in read_lines(path):
            yield number, _parse(line)
        return
    if suffix == ".json":
        rows = _parse(read_bytes(path))
        if not isinstance(rows, list):
            raise FileFault(Fault(path, None, rows if isinstance(rows, str) else "not a list of lists"))
    else:
        rows = _array(path, suffix).tolist()
    yield from enumerate(rows, start=1)


def _parse(data: bytes) -> object:
    """The JSON value, or words for what is wrong with it."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        return f"not valid JSON: {error}"
    return "not a list of token ids" if isinstance(value, str) else value


def _array(path: Path, suffix: str) -> np.ndarray[tuple[int, int], np.dtype[np.integer]]:
    data = read_bytes(path)
    try:
        if suffix == ".safetensors":
            (array,) = load(data).values()
        else:
            array = np.load(BytesIO(data), allow_pickle=False)
    except (SafetensorError, ValueError, EOFError, OSError) as error:
        raise FileFault(Fault(path, None, f"not an array of token ids: {error}")) from error
    if array.ndim != 2 or not np.issubdtype(array.dtype, np.integer):
        reason = f"an integer array [rows, tokens] is expected, found {array.dtype} {list(array.shape)}"
        raise FileFault(Fault(path, None, reason))
    return array


def _fault(row: object, vocab_size: int, max_tokens: int) -> str | None:
    if not isinstance(row, list) or not all(type(token) is int for token in row):
        return "not a list of token ids"
    if not 2 <= len(row) <= max_tokens:
        return f"a row of {len(row)} tokens, between 2 and max_tokens = {max_tokens} are expected"
    if (wrong := next((token for token in row if not 0 <= token < vocab_size), None)) is not None:
        return f"token id {wrong} is not in the vocabulary of {vocab_size}"
    return None


def _row_hash(row: list[int]) -> str:
    return hashlib.sha256(np.asarray(row, dtype="<u4").tobytes()).hexdigest()[:32]
