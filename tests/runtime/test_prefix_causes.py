"""What stands where two prompts part is called by its kind."""

from __future__ import annotations

import pytest

from gristmill.runtime.prefix_causes import find_difference

AFTER = " Answer every question in one friendly sentence."


@pytest.mark.parametrize(
    ("cause", "here", "there"),
    [
        ("timestamp", "Now: 2026-11-29 12:00:05.", "Now: 2026-11-29 12:01:07."),
        ("timestamp", "Now: 2026-11-29T23:59:59.120Z", "Now: 2026-11-30T00:00:01.002Z"),
        ("timestamp", "The time is 9:05 AM.", "The time is 10:12 AM."),
        ("timestamp", "t=1764400000", "t=1764400123"),
        ("date", "Today is 2026-11-29.", "Today is 2026-11-30."),
        ("date", "Today is Sunday, November 29, 2026.", "Today is Monday, November 30, 2026."),
        ("date", "Heute ist der 29.11.2026", "Heute ist der 01.12.2026"),
        ("id", "id 123e4567-e89b-12d3-a456-426614174000", "id 123e4567-e89b-12d3-a456-426614174aaa"),
        ("id", "request req_8f3a9c", "request req_9f3a9d"),
        ("id", "for user-1234", "for user-1299"),
        ("nonce", "session 3f9a0c7be1d24458", "session 91b0cc2d77aa01ef"),
        ("nonce", "key SBklNzNTx673djsc", "key hv4iPQCd0nSAKV13"),
        ("number", "turn 9 of 20.", "turn 10 of 20."),
        ("number", "balance: 1,204.50", "balance: 1,318.00"),
        ("whitespace", "Be kind.\n\n", "Be kind.\n"),
        ("whitespace", "Be kind.\r\n", "Be kind.\n"),
        ("whitespace", "Be  kind.", "Be kind."),
        ("text", "Dear Mary,", "Dear John,"),
    ],
)
def test_a_difference_is_called_by_its_kind(cause: str, here: str, there: str) -> None:
    before = "You are a helpful assistant. "
    assert find_difference(before + here + AFTER, before + there + AFTER).cause == cause
    assert find_difference(before + there + AFTER, before + here + AFTER).cause == cause


def test_a_time_that_is_the_same_in_both_is_not_the_cause() -> None:
    assert find_difference("At 12:00, Mary said:" + AFTER, "At 12:00, John said:" + AFTER).cause == "text"


def test_no_more_than_40_characters_are_shown_of_either() -> None:
    difference = find_difference("secret " * 30 + "2026-11-29 " * 30, "secret " * 30 + "2026-11-30 " * 30)
    assert len(difference.here) == len(difference.there) == 40
    assert "2026-11-29" in difference.here
    assert "2026-11-30" in difference.there
