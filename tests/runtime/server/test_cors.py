"""Web pages of another origin: those that are named may ask and read, whatever the answer; others not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.errors import InputError
from gristmill.runtime.server.keys import parse_api_key
from gristmill.runtime.server.settings import ServerSettings

PAGE, OTHER = "https://app.example", "https://evil.example"
ALLOWED, SHOWN = "access-control-allow-origin", "access-control-expose-headers"
ASKS = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,x-stainless-os",
}
BODY = {"model": "m", "prompt": "hi\n", "temperature": 0}


@pytest.fixture(scope="module")
def url(make_engine: Callable[..., LLMEngine], run_server_thread: Callable[..., Any]) -> Iterator[str]:
    """A server with a key, for pages of two origins."""
    origins = (PAGE, "http://localhost:5173")
    settings = ServerSettings(cors_origins=origins, api_keys=(parse_api_key("team:one"),))
    with run_server_thread(settings=settings, m=make_engine("parrot")) as server:
        yield server.url


def ask(url: str, origin: str, key: str = "one", **body: object) -> httpx.Response:
    headers = {"Origin": origin, "Authorization": f"Bearer {key}"}
    return httpx.post(f"{url}/v1/completions", json=BODY | body, headers=headers)


def test_a_browser_that_asks_first_needs_no_key_and_may_send_one(url: str) -> None:
    answer = httpx.options(f"{url}/v1/chat/completions", headers={"Origin": PAGE} | ASKS)
    assert answer.status_code == 200
    assert answer.headers[ALLOWED] == PAGE
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == ASKS["Access-Control-Request-Headers"]


def test_a_browser_that_asks_first_for_another_page_is_refused(url: str) -> None:
    answer = httpx.options(f"{url}/v1/chat/completions", headers={"Origin": OTHER} | ASKS)
    assert answer.status_code == 400
    assert ALLOWED not in answer.headers


@pytest.mark.parametrize(
    ("wish", "status"),
    [({}, 200), ({"stream": True}, 200), ({"stream": True, "n": 0}, 400), ({"key": "wrong"}, 401)],
    ids=["whole", "streamed", "refused", "without the key"],
)
def test_every_answer_may_be_read_by_the_page_and_by_no_other(url: str, wish: Any, status: int) -> None:
    for origin, allowed in ((PAGE, PAGE), ("http://localhost:5173", "http://localhost:5173"), (OTHER, None)):
        answer = ask(url, origin, **wish)
        assert answer.status_code == status
        assert answer.headers.get(ALLOWED) == allowed
        assert answer.headers["vary"] == "Origin" or allowed is None


def test_a_page_may_read_the_requests_id_and_error_code(url: str) -> None:
    answer = ask(url, PAGE, n=0)
    assert answer.headers[SHOWN] == "*"
    assert {"x-request-id", "x-error-code"} <= set(answer.headers)


def test_a_star_lets_every_page_ask(make_engine: Callable[..., LLMEngine], serve: Callable[..., Any]) -> None:
    server = serve(settings=ServerSettings(cors_origins=("*",)), m=make_engine("parrot"))
    assert ask(server.url, OTHER, stream=True).headers[ALLOWED] == "*"


def test_without_origins_no_page_may_read_anything(
    make_engine: Callable[..., LLMEngine], serve: Callable[..., Any]
) -> None:
    server = serve(m=make_engine("parrot"))
    assert not {name for name in ask(server.url, PAGE).headers if name.startswith("access-control")}
    assert httpx.options(f"{server.url}/v1/completions", headers={"Origin": PAGE} | ASKS).status_code == 405


@pytest.mark.parametrize("origin", ["chrome-extension://abcdef", "http://[::1]:8080", "http://10.0.0.7", "*"])
def test_an_origin_is_taken_as_browsers_send_it(origin: str) -> None:
    assert ServerSettings(cors_origins=(origin,)).cors_origins == (origin,)


@pytest.mark.parametrize(
    "origin",
    [
        *("https://app.example/", "https://app.example/chat", "app.example", "https://App.example", ""),
        *("https://app.example:443", "http://app.example:80", "https://*.example", "https://u@app.example"),
        *("https://app.example\n", "https://a.example,https://b.example", "null"),
    ],
)
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(InputError, match="cors_origins is invalid"):
        ServerSettings(cors_origins=(PAGE, origin))
