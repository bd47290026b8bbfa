"""Bad requests get OpenAI's error form with the field named, and never a 5xx."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.server.fields import NO_EFFECT, UNSUPPORTED_CHAT, UNSUPPORTED_COMPLETION
from gristmill.runtime.server.protocol import ChatRequest, CompletionRequest

COMPLETION: dict[str, Any] = {"model": "m", "prompt": "hi\n", "temperature": 0, "max_tokens": 4}
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def http(
    make_engine: Callable[..., LLMEngine], run_server_thread: Callable[..., Any]
) -> Iterator[httpx.Client]:
    with (
        run_server_thread(m=make_engine("parrot", num_blocks=16)) as server,
        httpx.Client(base_url=server.url, timeout=20) as client,
    ):
        yield client


def post(http: httpx.Client, path: str, body: Any) -> httpx.Response:
    return http.post(f"/v1/{path}", content=json.dumps(body))


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize(
    ("changes", "status", "param", "code"),
    [
        ({"model": "other"}, 404, "model", "model_not_found"),
        ({"model": 5}, 400, "model", "invalid_value"),
        ({"prompt": "x" * 64}, 400, "prompt", "context_length_exceeded"),
        ({"max_tokens": 1000}, 400, "max_tokens", "context_length_exceeded"),
        ({"max_tokens": 0}, 400, "max_tokens", "invalid_value"),
        ({"max_tokens": -1}, 400, "max_tokens", "invalid_value"),
        ({"max_tokens": "4"}, 400, "max_tokens", "invalid_value"),
        ({"prompt": ""}, 400, "prompt", "invalid_value"),
        ({"prompt": []}, 400, "prompt", "invalid_value"),
        ({"prompt": [""]}, 400, "prompt", "invalid_value"),
        ({"prompt": [[]]}, 400, "prompt", "invalid_value"),
        ({"prompt": [1, "x"]}, 400, "prompt", "invalid_value"),
        ({"prompt": [260]}, 400, "prompt", "invalid_value"),
        ({"prompt": {"text": "x"}}, 400, "prompt", "invalid_value"),
        ({"prompt": "\ud800"}, 400, None, "invalid_value"),
        ({"prompt": ["x"] * 300}, 400, "prompt", "invalid_value"),
        ({"temperature": -1}, 400, "temperature", "invalid_value"),
        ({"temperature": "hot"}, 400, "temperature", "invalid_value"),
        ({"temperature": True}, 400, "temperature", "invalid_value"),
        ({"top_p": 0}, 400, "top_p", "invalid_value"),
        ({"n": 0}, 400, "n", "invalid_value"),
        ({"n": 2}, 400, "n", "invalid_value"),
        ({"logprobs": 21}, 400, "logprobs", "invalid_value"),
        ({"stop": [""]}, 400, "stop", "invalid_value"),
        ({"stop": 7}, 400, "stop", "invalid_value"),
        ({"stop_token_ids": [9999]}, 400, "stop_token_ids", "invalid_value"),
        ({"seed": 2**70}, 400, "seed", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, 400, "stream_options", "invalid_value"),
        ({"stream": True, "stream_options": {"x": 1}}, 400, "stream_options", "unknown_parameter"),
        ({"suffix": "x"}, 400, "suffix", "unsupported_parameter"),
        ({"best_of": 2}, 400, "best_of", "invalid_value"),
        ({"best_of": 2, "temperature": 1, "stream": True}, 400, "best_of", "invalid_value"),
        ({"best_of": 1, "n": 2}, 400, "best_of", "invalid_value"),
        ({"prompt_logprobs": 2, "stream": True}, 400, "prompt_logprobs", "invalid_value"),
        ({"prompt_logprobs": -1}, 400, "prompt_logprobs", "invalid_value"),
        ({"bad_words": [""]}, 400, "bad_words", "invalid_value"),
        ({"bad_words": "x"}, 400, "bad_words", "invalid_value"),
        ({"allowed_token_ids": []}, 400, "allowed_token_ids", "invalid_value"),
        ({"allowed_token_ids": [260]}, 400, "allowed_token_ids", "invalid_value"),
        ({"truncate_prompt_tokens": -2}, 400, "truncate_prompt_tokens", "invalid_value"),
        ({"priority": 2**40}, 400, "priority", "invalid_value"),
        ({"priority": "high"}, 400, "priority", "invalid_value"),
        ({"cache_salt": "x" * 257}, 400, "cache_salt", "invalid_value"),
        ({"return_progress": True}, 400, "return_progress", "invalid_value"),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            400,
            "stream_options",
            "invalid_value",
        ),
        ({"guided_regex": "a*"}, 400, "guided_regex", "unsupported_parameter"),
        ({"temprature": 1}, 400, "temprature", "unknown_parameter"),
        ({"\ud800": 1}, 400, "?", "unknown_parameter"),
    ],
)
def test_a_wrong_completion_request_is_refused(
    http: httpx.Client, changes: dict[str, Any], status: int, param: str | None, code: str
) -> None:
    response = post(http, "completions", COMPLETION | changes)
    error = error_of(response)
    assert (response.status_code, error["param"], error["code"]) == (status, param, code)


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": "hi"}, "messages", "invalid_value"),
        ({"messages": [{"content": "hi"}]}, "messages", "invalid_value"),
        ({"messages": [{"role": "user", "content": "x" * 99}]}, "messages", "context_length_exceeded"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_value"),
        ({"max_completion_tokens": 5}, "max_tokens", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"logprobs": 1}, "logprobs", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "unsupported_parameter"),
        ({"tool_choice": "auto", "tools": [{}]}, "tool_choice", "unsupported_parameter"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
        ({"functions": []}, "functions", "unsupported_parameter"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "invalid_value"),
    ],
)
def test_a_wrong_chat_request_is_refused(
    http: httpx.Client, changes: dict[str, Any], param: str, code: str
) -> None:
    response = post(http, "chat/completions", CHAT | changes)
    error = error_of(response)
    assert (response.status_code, error["param"], error["code"]) == (400, param, code)


@pytest.mark.parametrize("name", ["model", "prompt"])
def test_a_missing_field_is_named(http: httpx.Client, name: str) -> None:
    body = {key: value for key, value in COMPLETION.items() if key != name}
    error = error_of(post(http, "completions", body))
    assert (error["param"], error["code"]) == (name, "missing_parameter")


def test_a_misspelt_field_gets_a_suggestion(http: httpx.Client) -> None:
    assert "did you mean temperature?" in error_of(post(http, "completions", {"temprature": 1}))["message"]


def test_both_numbers_are_in_the_message_of_a_long_prompt(http: httpx.Client) -> None:
    message = error_of(post(http, "completions", COMPLETION | {"prompt": "x" * 70}))["message"]
    assert "70 prompt tokens" in message
    assert "64 tokens" in message


def test_fields_without_effect_are_accepted(http: httpx.Client) -> None:
    body = COMPLETION | dict.fromkeys(NO_EFFECT, "x")
    assert post(http, "completions", body).status_code == 200


def test_unsupported_fields_are_accepted_when_they_ask_for_what_is_done_anyway(http: httpx.Client) -> None:
    neutral = {name: values[0] if values else None for name, values in UNSUPPORTED_CHAT.items()}
    assert post(http, "chat/completions", CHAT | neutral).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"model": NaN}',
        b'{"model": Infinity}',
        b"[" * 100_000,
        b'{"temperature": ' + b"9" * 5000 + b"}",
    ],
)
def test_a_malformed_body_is_refused(http: httpx.Client, body: bytes) -> None:
    response = http.post("/v1/completions", content=body)
    assert (response.status_code, error_of(response)["code"]) == (400, "invalid_json")


def test_a_huge_body_is_refused(http: httpx.Client) -> None:
    response = http.post("/v1/completions", content=b" " * (17 << 20))
    assert (response.status_code, error_of(response)["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/v1/none", 404), ("GET", "/v1/completions", 405)]
)
def test_unknown_paths_and_methods_have_the_same_error_form(
    http: httpx.Client, method: str, path: str, status: int
) -> None:
    response = http.request(method, path)
    assert response.status_code == status
    error_of(response)


def test_the_openai_client_raises_its_own_errors(http: httpx.Client) -> None:
    with openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model="m", prompt="x", temperature=-1)
        assert caught.value.param == "temperature"
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="other", prompt="x")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
CHAT_FIELDS = sorted({*ChatRequest.model_fields, *UNSUPPORTED_CHAT, *NO_EFFECT, "unknown"})
COMPLETION_FIELDS = sorted({*CompletionRequest.model_fields, *UNSUPPORTED_COMPLETION})


@settings(max_examples=120)
@given(changes=st.dictionaries(st.sampled_from(CHAT_FIELDS), JSON, max_size=4), keep=st.booleans())
def test_no_chat_body_causes_a_server_error(http: httpx.Client, changes: dict[str, Any], keep: bool) -> None:
    response = post(http, "chat/completions", (CHAT if keep else {}) | changes)
    assert response.status_code < 500
    if response.status_code != 200:
        error_of(response)


@settings(max_examples=120)
@given(changes=st.dictionaries(st.sampled_from(COMPLETION_FIELDS), JSON, max_size=4))
def test_no_completion_body_causes_a_server_error(http: httpx.Client, changes: dict[str, Any]) -> None:
    response = post(http, "completions", COMPLETION | changes)
    assert response.status_code < 500
    if response.status_code != 200:
        error_of(response)
