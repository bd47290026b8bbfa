"""No body is answered with a 5xx, whatever stands in its fields: the client is told, the server goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from gristmill.runtime.chat_template import compile_template
from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.tokenizer import Tokenizer

SHOWS_EVERYTHING = """
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- if documents is defined %}{{ documents | tojson }}{% endif %}
{%- if x is defined %}{{ x | tojson }}{% endif %}
{%- for message in messages %}{{ message['content'] }}{{ '\n' }}{% endfor %}"""

MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hi\n", "max_tokens": 2},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [1]},
    "/apply-template": {"messages": MESSAGES},
}
FIELDS = {
    "/v1/completions": (
        "prompt",
        "stop",
        "bad_words",
        "logit_bias",
        "seed",
        "priority",
        "best_of",
        "model",
        "zz",
    ),
    "/v1/chat/completions": ("messages", "tools", "documents", "chat_template_kwargs", "tool_choice", "user"),
    "/tokenize": ("prompt", "messages", "model"),
    "/detokenize": ("tokens",),
    "/apply-template": ("messages", "tools", "chat_template_kwargs"),
}
HALF = json.dumps("\ud800")
VALUES = [
    *("[" * depth + "]" * depth for depth in (50, 900, 5_000)),
    *('{"a":' * depth + "1" + "}" * depth for depth in (50, 900, 5_000)),
    HALF,
    f"[{HALF}]",
    f"{{{HALF}: {HALF}}}",
    f'{{"x": {HALF}}}',
    f'[{{"x": {HALF}}}]',
    "9" * 4000,
    "-" + "9" * 400,
    "1e400",
    "[1e400]",
    "-0.0",
    "true",
    '""',
    "[[]]",
    "[{}]",
    "[null]",
    '{"messages": 1}',
    '{"x": ' + "[" * 400 + "]" * 400 + "}",
    f'[{{"role": {HALF}, "content": "x"}}]',
    f'[{{"role": "user", "content": {HALF}}}]',
    '[{"role": "user", "content": [null]}]',
    '[{"role": "user", "content": [{"type": ["x"]}]}]',
    f'[{{"role": "user", "content": [{{"type": "text", "text": {HALF}}}]}}]',
    '[{"role": "assistant", "tool_calls": 5}]',
    '[{"role": "assistant", "tool_calls": [5]}]',
    '[{"role": "assistant", "tool_calls": [{"function": 5}]}]',
    f'[{{"role": "assistant", "tool_calls": [{{"function": {{"arguments": {HALF}}}}}]}}]',
]


@pytest.fixture(scope="module")
def http(
    make_engine: Callable[..., LLMEngine], run_server_thread: Callable[..., Any], byte_tokenizer: Tokenizer
) -> Iterator[httpx.Client]:
    templates = {"default": compile_template(SHOWS_EVERYTHING, {})}
    engine = make_engine("parrot", tokenizer=replace(byte_tokenizer, templates=templates))
    with run_server_thread(m=engine) as server, httpx.Client(base_url=server.url, timeout=20) as client:
        yield client


@pytest.mark.parametrize(("path", "field"), [(path, field) for path in FIELDS for field in FIELDS[path]])
def test_no_value_of_a_field_causes_a_server_error(http: httpx.Client, path: str, field: str) -> None:
    others = {name: value for name, value in ({"model": "m"} | BODIES[path]).items() if name != field}
    for value in VALUES:
        body = json.dumps(others)[:-1] + f", {json.dumps(field)}: {value}}}"
        response = http.post(path, content=body)
        assert response.status_code < 500, (value[:80], response.text)
        if response.status_code != 200:
            assert response.json()["error"]["message"]


def test_the_server_still_answers(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={"model": "m", "prompt": "hi\n", "temperature": 0})
    assert answer.json()["choices"][0]["text"] == "hi"
