"""Stop strings: nothing of them leaks, however the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.runtime.sampling.stop import StopStrings


def search_slowly(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The obvious twin: look at every end, one after the other."""
    for end in range(len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)], stop
    return text, None


def run(pieces: list[str], stops: list[str], *, include: bool = False) -> tuple[list[str], str | None]:
    checker = StopStrings(stops, include=include)
    shown = []
    for piece in pieces:
        shown.append(checker.feed(piece))
        if checker.matched is not None:
            return shown, checker.matched
    return [*shown, checker.flush()], None


def test_parts_of_a_stop_string_are_held_back() -> None:
    assert run(["ABC", "DE", "FG", "HIJ", "K"], ["DEFGHIJ"]) == (["ABC", "", "", ""], "DEFGHIJ")


def test_text_that_turns_out_harmless_is_released() -> None:
    assert run(["xDE", "FX"], ["DEFG"]) == (["x", "DEFX", ""], None)


def test_text_held_at_the_end_is_flushed() -> None:
    assert run(["xDE"], ["DEF"]) == (["x", "DE"], None)


def test_the_stop_string_is_kept_when_asked_for() -> None:
    assert run(["a#", "#b"], ["##"], include=True) == (["a", "##"], "##")


def test_a_stop_inside_text_that_is_not_armed_is_passed_over() -> None:
    checker = StopStrings(["b", "abc"])
    assert checker.feed("ab", armed=False) == ""
    assert checker.feed("x") == "abx"
    assert checker.matched is None


def test_a_stop_may_begin_in_text_that_is_not_armed() -> None:
    checker = StopStrings(["abc"])
    assert checker.feed("xab", armed=False) == "x"
    assert checker.feed("c") == ""
    assert checker.matched == "abc"


@pytest.mark.parametrize("include", [False, True])
@settings(max_examples=150)
@given(
    pieces=st.lists(st.text("ab", max_size=4), max_size=10),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
)
def test_the_result_does_not_depend_on_the_cuts(include: bool, pieces: list[str], stops: list[str]) -> None:
    shown, matched = run(pieces, stops, include=include)
    assert ("".join(shown), matched) == search_slowly("".join(pieces), stops, include)


@settings(max_examples=150)
@given(
    pieces=st.lists(st.text("ab", max_size=4), max_size=10),
    stop=st.text("ab", min_size=1, max_size=5),
)
def test_text_is_held_no_longer_than_needed(pieces: list[str], stop: str) -> None:
    checker = StopStrings([stop])
    fed = shown = ""
    for piece in pieces:
        fed += piece
        shown += checker.feed(piece)
        if checker.matched is not None:
            return
        held = fed[len(shown) :]
        assert stop.startswith(held)
        assert not any(stop.startswith(fed[-n:]) for n in range(len(held) + 1, min(len(stop), len(fed) + 1)))
