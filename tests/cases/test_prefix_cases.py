"""Cases from the field on prompts that miss the prefix cache, and on who may learn why."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gristmill.runtime.engine import LLMEngine

MakeEngine = Callable[..., LLMEngine]
Serve = Callable[..., Any]
DIVERGED_AT, CAUSE = "x-gristmill-prefix-diverged-at", "x-gristmill-prefix-cause"
RULES = "Answer in one friendly sentence. Never mention the rules. " * 8


def letters(seed: int, count: int = 400) -> str:
    return "".join(random.Random(seed).choices("abcdefgh ", k=count))


def ask(url: str, prompt: str, **changes: Any) -> httpx.Response:
    body = {"model": "m", "prompt": prompt, "max_tokens": 1, **changes}
    response = httpx.post(
        f"{url}/v1/completions", json=body, headers={"X-Gristmill-Debug": "prefix"}, timeout=20
    )
    assert response.status_code == 200, response.text
    return response


def divergences(url: str) -> dict[str, float]:
    """Counts by cause, as scraped; causes that never occurred left out."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    found = [line for line in lines if line.startswith("gristmill:prefix_divergence_total{")]
    counts = {line.split('cause="')[1].split('"')[0]: float(line.split()[-1]) for line in found}
    return {cause: count for cause, count in counts.items() if count}


@pytest.fixture
def url(make_engine: MakeEngine, serve: Serve) -> str:
    return str(serve(m=make_engine(num_blocks=1024)).url)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("cause", "same", "first", "second"),
    [
        ("nonce", "session 3f9", "a0c7be1d24458.", "b77d2c0a19e44."),
        ("timestamp", "now 2026-11-29 12:0", "0:05.", "7:31."),
        ("whitespace", "be kind", "\n\n", "\n"),
    ],
)
def test_c40_what_breaks_the_prefix_is_named_with_its_place(
    url: str, caplog: pytest.LogCaptureFixture, stream: bool, cause: str, same: str, first: str, second: str
) -> None:
    """Token ids are bytes here, so that a place is a character."""
    start = f"You are a miller, {same}"
    ask(url, start + first + RULES, stream=stream)
    with caplog.at_level(logging.WARNING):
        headers = ask(url, start + second + RULES, stream=stream).headers
    place = len(start) + (cause == "whitespace")
    assert (headers[CAUSE], headers[DIVERGED_AT]) == (cause, str(place))
    assert int(headers["x-gristmill-prefix-cached"]) <= place
    assert same[-8:] in json.loads(headers["x-gristmill-prefix-here"])
    assert divergences(url) == {cause: 1}
    (line,) = [record.getMessage() for record in caplog.records if "prefix cache" in record.getMessage()]
    assert f"token {place} ({cause})" in line
    assert "miller" not in line


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (letters(1), letters(2)),
        ("session 1. Be kind.", "session 2. Be kind."),
        (RULES + "Who are you?", RULES + "What is the time?"),
    ],
    ids=["another conversation", "short prompts", "a good hit"],
)
def test_c40_nothing_is_reported_where_nothing_was_lost(url: str, first: str, second: str) -> None:
    ask(url, first)
    headers = ask(url, second).headers
    assert int(headers["x-gristmill-prefix-tokens"]) == len(second)
    assert CAUSE not in headers
    assert divergences(url) == {}


def test_c40_headers_are_for_those_who_ask(url: str) -> None:
    body = {"model": "m", "prompt": RULES, "max_tokens": 1}
    headers = httpx.post(f"{url}/v1/completions", json=body).headers
    assert not [name for name in headers if name.startswith("x-gristmill-prefix")]


def test_c41_a_diagnosis_never_compares_prompts_of_two_salts(url: str) -> None:
    ask(url, f"session 1111. {RULES}", cache_salt="one")
    assert CAUSE not in ask(url, f"session 2222. {RULES}", cache_salt="two").headers
    assert divergences(url) == {}


def test_c41_the_recent_text_is_shown_to_those_who_share_its_salt_only(url: str) -> None:
    recent = "x-gristmill-prefix-recent"
    for salt in ({}, {"cache_salt": "ours"}):
        ask(url, f"session 1111. {RULES}", **salt)
        headers = ask(url, f"session 2222. {RULES}", **salt).headers
        assert headers[CAUSE] == "number"
        assert (recent in headers) == bool(salt)
    assert "1111" in json.loads(headers[recent])


def test_c36_without_a_prefix_cache_no_poor_hit_is_told(make_engine: MakeEngine, serve: Serve) -> None:
    server = serve(m=make_engine(num_blocks=1024, prefix_caching=False))
    ask(server.url, RULES)
    headers = ask(server.url, RULES).headers
    assert not [name for name in headers if name.startswith("x-gristmill-prefix")]
