"""Packing keeps every token in order and drops only an unfinished last sequence."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gristmill.calibration.packing import Piece, pack, trim

token_lists = st.lists(st.lists(st.integers(0, 99), max_size=9).map(tuple), max_size=12)


def piece(ids: tuple[int, ...]) -> Piece:
    return Piece(ids, len(ids), False, frozenset())


@given(lists=token_lists, width=st.integers(1, 7))
def test_sequences_are_the_stream_cut_at_one_length(lists: list[tuple[int, ...]], width: int) -> None:
    stream = [token for ids in lists for token in ids]
    sequences = pack([piece(ids) for ids in lists], width)
    assert all(len(sequence) == width for sequence in sequences)
    assert [token for sequence in sequences for token in sequence] == stream[: len(stream) // width * width]


@given(lists=token_lists, tokens=st.integers(0, 60))
def test_trimming_keeps_the_first_tokens(lists: list[tuple[int, ...]], tokens: int) -> None:
    stream = [token for ids in lists for token in ids]
    kept = trim([piece(ids) for ids in lists], tokens)
    assert [token for one in kept for token in one.ids] == stream[:tokens]
