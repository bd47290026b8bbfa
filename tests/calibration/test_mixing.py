"""Shares are kept to the token, and what one source lacks the others give."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.calibration.mixing import apportion, draw_shares
from gristmill.calibration.packing import Piece

positive = st.floats(0.01, 100)


def pieces(tokens: int, size: int = 7) -> Iterator[Piece]:
    for start in range(0, tokens, size):
        ids = tuple(range(start, min(start + size, tokens)))
        yield Piece(ids, len(ids), False, frozenset())


def tokens_of(piece: Piece) -> int:
    return len(piece.ids)


@given(total=st.integers(0, 10_000), weights=st.lists(positive, min_size=1, max_size=8))
def test_parts_add_up_and_are_the_exact_share_rounded(total: int, weights: list[float]) -> None:
    parts = apportion(total, weights)
    assert sum(parts) == total
    assert all(abs(part - total * w / sum(weights)) < 1 for part, w in zip(parts, weights, strict=True))


def test_a_short_source_is_filled_up_by_the_others_in_their_proportion() -> None:
    draws = draw_shares([pieces(10), pieces(900), pieces(900)], [1, 1, 2], 400, tokens_of)
    assert [draw.wanted for draw in draws] == [100, 100, 200]
    assert [draw.quota for draw in draws] == [10, 130, 260]


def test_only_what_is_needed_is_drawn() -> None:
    source = pieces(1_000)
    draw_shares([source], [1], 20, tokens_of)
    assert next(source).ids[0] == 21


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=5),
    total=st.integers(0, 900),
    data=st.data(),
)
def test_quotas_reach_the_total_whenever_there_is_enough(
    sizes: list[int], total: int, data: st.DataObject
) -> None:
    shares = data.draw(st.lists(positive, min_size=len(sizes), max_size=len(sizes)))
    draws = draw_shares([pieces(size) for size in sizes], shares, total, tokens_of)
    assert sum(draw.quota for draw in draws) == min(total, sum(sizes))
    assert all(draw.quota <= draw.size for draw in draws)
