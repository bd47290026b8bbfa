"""Token samples come back from their file as they were, with the same bytes each time."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from gristmill.calibration.samples import (
    LengthQuantiles,
    SourceSummary,
    TokenSamples,
    length_octaves,
    length_quantiles,
    load_samples,
    samples_digest,
    save_samples,
)
from gristmill.runtime.errors import IntegrityError

SEQUENCES = ((1, 2, 3), (4, 5), (70_000,))
SAMPLES = TokenSamples(
    sequences=SEQUENCES,
    digest=samples_digest(SEQUENCES),
    prompts=3,
    tokens=6,
    records=frozenset({"b", "a", "c"}),
    sources=(SourceSummary("a.jsonl", "chat", 3, 6, 1.0, 1, LengthQuantiles(1, 2, 3, 3), (1, 2)),),
    warnings=("a.jsonl holds little",),
)


def test_samples_survive_their_file(tmp_path: Path) -> None:
    save_samples(tmp_path / "s", SAMPLES)
    assert load_samples(tmp_path / "s") == SAMPLES


def test_the_file_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_samples(tmp_path / name, SAMPLES)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_changed_token_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    save_samples(path, SAMPLES)
    data = bytearray(path.read_bytes())
    data[-4] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match="has changed"):
        load_samples(path)


@pytest.mark.parametrize("cut", [0, 20, -3])
def test_a_cut_file_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "s"
    save_samples(path, SAMPLES)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(IntegrityError, match="not a file of token samples"):
        load_samples(path)


def test_another_safetensors_file_is_refused(tmp_path: Path) -> None:
    save_file({"x": np.zeros(2, np.int32)}, tmp_path / "s")
    with pytest.raises(IntegrityError, match="not a file of token samples"):
        load_samples(tmp_path / "s")


@pytest.mark.parametrize(
    "other", [((1, 2), (3, 4, 5), (70_000,)), ((4, 5), (1, 2, 3), (70_000,)), ((1, 2, 3), (4, 5))]
)
def test_the_digest_knows_order_and_ends(other: tuple[tuple[int, ...], ...]) -> None:
    assert samples_digest(other) != samples_digest(SEQUENCES)


def test_the_digest_is_sha256_of_lengths_and_tokens_in_little_endian() -> None:
    layout = struct.pack("<QII", 2, 1, 2) + struct.pack("<QI", 1, 3)
    assert samples_digest([[1, 2], [3]]) == f"sha256:{hashlib.sha256(layout).hexdigest()}"


def test_quantiles_are_lengths_that_occur() -> None:
    assert length_quantiles([5, 1, 9, 3]) == LengthQuantiles(minimum=1, median=3, p90=9, maximum=9)


def test_octaves_count_lengths_by_powers_of_two() -> None:
    assert length_octaves([1, 2, 3, 4, 7, 16]) == (1, 2, 2, 0, 1)
