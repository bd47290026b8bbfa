"""/tokenize, /detokenize and /apply-template, in vLLM's forms, and /v1/embeddings, which is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.tokenizer import Tokenizer

START = 257
MESSAGES = [{"role": "user", "content": "hé"}]
CHAT_TOKENS = [START, *"hé\n".encode()]


@pytest.fixture(scope="module")
def http(
    make_engine: Callable[..., LLMEngine],
    run_server_thread: Callable[..., Any],
    start_tokenizer: Tokenizer,
) -> Iterator[httpx.Client]:
    with (
        run_server_thread(m=make_engine(tokenizer=start_tokenizer)) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        yield client


def test_a_text_becomes_tokens(http: httpx.Client) -> None:
    assert http.post("/tokenize", json={"model": "m", "prompt": "hé"}).json() == {
        "count": 4,
        "max_model_len": 256,
        "tokens": [START, *"hé".encode()],
        "token_strs": None,
    }


def test_special_tokens_may_be_left_out(http: httpx.Client) -> None:
    body = {"prompt": "hé", "add_special_tokens": False, "return_token_strs": True}
    answer = http.post("/tokenize", json=body).json()
    assert (answer["tokens"], answer["token_strs"]) == (list("hé".encode()), ["h", "Ã", "©"])


def test_a_chat_becomes_what_its_template_renders(http: httpx.Client) -> None:
    assert http.post("/tokenize", json={"messages": MESSAGES}).json()["tokens"] == CHAT_TOKENS


def test_the_rendered_prompt_is_shown_with_its_tokens(http: httpx.Client) -> None:
    assert http.post("/apply-template", json={"model": "m", "messages": MESSAGES}).json() == {
        "prompt": "<|start|>hé\n",
        "count": 5,
        "max_model_len": 256,
        "tokens": CHAT_TOKENS,
    }


def test_detokenizing_inverts_tokenizing(http: httpx.Client) -> None:
    tokens = http.post("/tokenize", json={"prompt": "hé 🙂"}).json()["tokens"]
    assert http.post("/detokenize", json={"tokens": tokens}).json() == {"prompt": "<|start|>hé 🙂"}
    assert http.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "\ud800"}, None),
        ("/tokenize", {"prompt": "x", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"prompt": "x" * 10_000}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ("/tokenize", {"messages": MESSAGES, "chat_template": "x"}, "chat_template"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [2**70]}, "tokens"),
        ("/detokenize", {"tokens": ["x"]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
        ("/apply-template", {"messages": [{}]}, "messages"),
        ("/apply-template", {"messages": MESSAGES, "prompt": "x"}, "prompt"),
        ("/v1/embeddings", {"model": "m", "input": "x"}, "model"),
    ],
)
def test_what_is_wrong_is_named(
    http: httpx.Client, path: str, body: dict[str, Any], param: str | None
) -> None:
    response = http.post(path, content=json.dumps(body))
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_embeddings_of_a_text_model_are_refused_as_such(http: httpx.Client) -> None:
    error = http.post("/v1/embeddings", json={"model": "m", "input": "x"}).json()["error"]
    assert error["code"] == "unsupported_endpoint"
    assert "makes no embeddings" in error["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": []}),
        ("/apply-template", {"messages": MESSAGES}),
        ("/v1/embeddings", {}),
    ],
)
def test_an_unknown_model_is_not_found(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    response = http.post(path, json=body | {"model": "other"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


def test_of_several_models_one_must_be_named(
    make_engine: Callable[..., LLMEngine], serve: Callable[..., Any]
) -> None:
    server = serve(a=make_engine(), b=make_engine())
    response = httpx.post(f"{server.url}/tokenize", json={"prompt": "x"})
    assert response.status_code == 400
    assert "a or b" in response.json()["error"]["message"]
    assert httpx.post(f"{server.url}/tokenize", json={"model": "b", "prompt": "x"}).json()["count"] == 1
