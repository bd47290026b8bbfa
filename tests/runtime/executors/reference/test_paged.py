"""Where a step's tokens lie in the cache, and which sequences are attended to together."""

from __future__ import annotations

import pytest

from gristmill.runtime.executors.base import SequenceStep
from gristmill.runtime.executors.reference.paged import lay_out


def decode(start: int, blocks: range) -> SequenceStep:
    return SequenceStep([7], start, blocks)


def test_tokens_are_flattened_in_batch_order_with_their_slots() -> None:
    layout = lay_out([SequenceStep([1, 2, 3], 3, [5, 2]), SequenceStep([4], 0, [9])], block_size=4)
    assert layout.token_ids.tolist() == [1, 2, 3, 4]
    assert layout.positions.tolist() == [3, 4, 5, 0]
    assert layout.slots.tolist() == [23, 8, 9, 36]


@pytest.mark.parametrize(
    ("asked", "rows"), [("none", [3]), ("last", [2, 3]), ("all", [0, 1, 2, 3])], ids=["none", "last", "all"]
)
def test_logit_rows_are_those_asked_for(asked: str, rows: list[int]) -> None:
    first = SequenceStep([1, 2, 3], 0, [0], asked)  # type: ignore[arg-type]
    assert lay_out([first, SequenceStep([4], 0, [1])], block_size=4).logit_rows.tolist() == rows


def test_decodes_are_attended_with_others_of_about_their_length() -> None:
    batch = [
        decode(100, range(40)),
        decode(5, range(2)),
        decode(120, range(40)),
        SequenceStep([1, 2], 0, [3]),
        decode(7, range(2)),
    ]
    groups = lay_out(batch, block_size=4).groups
    assert sorted(group.rows.flatten().tolist() for group in groups) == [[0, 2], [1, 5], [3, 4]]


def test_a_group_gathers_a_bounded_number_of_positions() -> None:
    batch = [decode(40_000, range(2501)) for _ in range(3)]
    groups = lay_out(batch, block_size=16).groups
    assert [group.rows.numel() * group.context for group in groups] == [40_001] * 3
