"""Published chat templates over HTTP: the prompt is as published, or the answer has the template's words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gristmill.runtime.chat_template import compile_template
from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.tokenizer import Tokenizer

Case = dict[str, Any]
WAYS = ("plain", "nosystem", "toolcall_dict")  # what every template takes as it is, or refuses
NOT_OURS = (
    "hfjs/",
    "lcpp/",
)  # other renderers' texts; tests/runtime/test_chat_template_cases.py has them all
PRINTS_THE_DATE = "2025"  # the cases were rendered on a day of that year


def chosen(data_dir: Path) -> list[Case]:
    """Each third case of the usual kinds."""
    lines = (data_dir / "field" / "template_cases.jsonl").read_text().splitlines()
    cases: list[Case] = [json.loads(line) for line in lines]
    usual = [
        case
        for case in cases
        if case["id"].endswith(WAYS)
        and not case["id"].startswith(NOT_OURS)
        and PRINTS_THE_DATE not in case.get("expected", "")
    ]
    return usual[::3]


def model_of(case: Case) -> str:
    return f"{case['template']}|{case['bos']}|{case['eos']}"


@pytest.fixture(scope="module")
def cases(data_dir: Path) -> list[Case]:
    return chosen(data_dir)


@pytest.fixture(scope="module")
def http(
    cases: list[Case],
    data_dir: Path,
    make_engine: Callable[..., LLMEngine],
    byte_tokenizer: Tokenizer,
    run_server_thread: Callable[..., Any],
) -> Iterator[httpx.Client]:
    engines = {}
    for case in cases:
        if model_of(case) not in engines:
            source = (data_dir / "field" / "templates" / case["template"]).read_text()
            tokens = {"bos_token": case["bos"] or "", "eos_token": case["eos"] or ""}
            template = compile_template(source, {name: text for name, text in tokens.items() if text})
            tokenizer = replace(byte_tokenizer, templates={"default": template})
            engines[model_of(case)] = make_engine(num_blocks=1024, tokenizer=tokenizer)
    with run_server_thread(**engines) as server, httpx.Client(base_url=server.url, timeout=20) as client:
        yield client


def render(http: httpx.Client, case: Case) -> httpx.Response:
    body = {
        "model": model_of(case),
        "messages": case["messages"],
        "tools": case.get("tools"),
        "add_generation_prompt": case["add_generation_prompt"],
        "chat_template_kwargs": case.get("extra"),
    }
    return http.post("/apply-template", json=body)


def test_every_case_is_rendered_or_refused_in_the_templates_words(
    http: httpx.Client, cases: list[Case]
) -> None:
    wrong = []
    for case in cases:
        response = render(http, case)
        if response.status_code == 200:
            right = "expected" not in case or response.json()["prompt"] == case["expected"]
        else:
            error = response.json()["error"]
            right = (response.status_code, error["code"]) == (400, "chat_template_error")
            right = right and case["expected_error"].split(": ", 1)[1] in error["message"]
        if not right:
            wrong.append((case["id"], response.text[:200]))
    assert wrong == []


def test_both_outcomes_are_among_them(http: httpx.Client, cases: list[Case]) -> None:
    assert {render(http, case).status_code for case in cases} == {200, 400}


def test_a_chat_request_answers_what_the_template_refuses_with_400(
    http: httpx.Client, cases: list[Case]
) -> None:
    refused = [case for case in cases if render(http, case).status_code == 400]
    for case in refused:
        body = {
            "model": model_of(case),
            "messages": case["messages"],
            "max_tokens": 1,
            "tools": case.get("tools"),
        }
        response = http.post("/v1/chat/completions", json=body)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "chat_template_error")


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_parts_that_are_not_text_are_refused_by_name(
    http: httpx.Client, cases: list[Case], kind: str
) -> None:
    parts = [{"type": "text", "text": "see"}, {"type": kind, kind: {"url": "https://example.org/x.png"}}]
    body = {"model": model_of(cases[0]), "messages": [{"role": "user", "content": parts}]}
    response = http.post("/v1/chat/completions", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "unsupported_content")
    assert error["param"] == "messages[0].content"
    assert kind in error["message"]


@pytest.fixture(scope="module")
def own(
    make_engine: Callable[..., LLMEngine], byte_tokenizer: Tokenizer, run_server_thread: Callable[..., Any]
) -> Iterator[httpx.Client]:
    """A model whose template shows all that it is given."""
    source = (
        "{{ tools[0].function.name if tools }}|{{ documents[0].text if documents }}|{{ mood }}|"
        "{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}"
        "{% if add_generation_prompt %}go{% endif %}"
    )
    tokenizer = replace(byte_tokenizer, templates={"default": compile_template(source, {})})
    with (
        run_server_thread(m=make_engine(tokenizer=tokenizer)) as server,
        httpx.Client(base_url=server.url, timeout=20) as client,
    ):
        yield client


def test_tools_documents_and_variables_reach_the_template(own: httpx.Client) -> None:
    body = {
        "messages": [
            {"role": "developer", "content": "be kind"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None},
        ],
        "tools": [{"type": "function", "function": {"name": "find", "parameters": {}}}],
        "documents": [{"text": "paper"}],
        "chat_template_kwargs": {"mood": "calm"},
    }
    expected = "find|paper|calm|system:be kind|user:ab|assistant:|go"
    assert own.post("/apply-template", json=body).json()["prompt"] == expected
    answer = own.post(
        "/v1/chat/completions", json=body | {"model": "m", "max_tokens": 1, "return_token_ids": True}
    )
    assert bytes(answer.json()["prompt_token_ids"]).decode() == expected


def test_the_prompt_may_end_before_the_answer_begins(own: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": False}
    assert own.post("/apply-template", json=body).json()["prompt"] == "|||user:a|"
