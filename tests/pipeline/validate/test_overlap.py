"""Overlap with calibration: shared records are refused, shared text is counted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.pipeline.validate.overlap import GRAM, covered_tokens, refuse_shared_records
from gristmill.runtime.errors import PromptError


def slow_twin(held_out: list[list[int]], calibration: list[list[int]]) -> int:
    grams = {tuple(s[i : i + GRAM]) for s in calibration for i in range(len(s) - GRAM + 1)}
    return sum(
        any(
            tuple(s[i : i + GRAM]) in grams
            for i in range(max(0, at - GRAM + 1), at + 1)
            if i + GRAM <= len(s)
        )
        for s in held_out
        for at in range(len(s))
    )


def test_disjoint_records_pass() -> None:
    refuse_shared_records("chats", frozenset({"a", "b"}), frozenset({"c"}))


def test_a_shared_record_is_refused() -> None:
    with pytest.raises(PromptError, match=r"validation data chats; found 1 of 2 records"):
        refuse_shared_records("chats", frozenset({"a", "b"}), frozenset({"b", "c"}))


def test_one_shared_gram_covers_its_tokens() -> None:
    shared = list(range(100, 100 + GRAM))
    assert covered_tokens([[1, 2, *shared, 3]], [[9, *shared, 9, 9]]) == GRAM


def test_a_shorter_run_covers_nothing() -> None:
    shared = list(range(100, 100 + GRAM - 1))
    assert covered_tokens([[1, *shared, 2]], [[3, *shared, 4]]) == 0


def test_a_run_across_two_sequences_is_no_run() -> None:
    run = list(range(GRAM))
    assert covered_tokens([run], [run[:8], run[8:]]) == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 1), max_size=60), max_size=3),
    st.lists(st.lists(st.integers(0, 1), max_size=200), max_size=3),
)
def test_covered_tokens_agree_with_the_slow_twin(
    held_out: list[list[int]], calibration: list[list[int]]
) -> None:
    assert covered_tokens(held_out, calibration) == slow_twin(held_out, calibration)
