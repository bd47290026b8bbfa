"""The published description of the API, and that answers have the form it gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.server.responses import RESPONSES, ErrorResponse

TEXT: dict[str, Any] = {"model": "m", "prompt": "hi\n", "max_tokens": 3}
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
SHOWN = {"prompt_logprobs": 2, "return_token_ids": True, "priority": 3}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": TEXT | SHOWN | {"logprobs": 1},
    "/v1/chat/completions": CHAT | SHOWN | {"logprobs": True, "top_logprobs": 1, "max_tokens": 3},
    "/tokenize": {"prompt": "hi", "return_token_strs": True},
    "/detokenize": {"tokens": [104, 105]},
    "/apply-template": CHAT,
}


@pytest.fixture(scope="module")
def http(
    make_engine: Callable[..., LLMEngine], run_server_thread: Callable[..., Any]
) -> Iterator[httpx.Client]:
    with run_server_thread(m=make_engine()) as server, httpx.Client(base_url=server.url) as client:
        yield client


@pytest.fixture(scope="module")
def description(http: httpx.Client) -> dict[str, Any]:
    document: dict[str, Any] = http.get("/openapi.json").json()
    return document


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from (value for key, value in node.items() if key == "$ref")
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for item in node:
            yield from references(item)


def test_every_route_of_the_api_is_described_with_its_method(description: dict[str, Any]) -> None:
    methods = {path: list(operations) for path, operations in description["paths"].items()}
    assert (
        methods
        | {
            "/v1/completions": ["post"],
            "/v1/chat/completions": ["post"],
            "/v1/embeddings": ["post"],
            "/v1/models": ["get"],
            "/v1/models/{name}": ["get"],
            "/tokenize": ["post"],
            "/detokenize": ["post"],
            "/apply-template": ["post"],
            "/health": ["get"],
            "/metrics": ["get"],
        }
        == methods
    )


def test_bodies_list_their_fields(description: dict[str, Any]) -> None:
    chat = description["components"]["schemas"]["ChatRequest"]
    assert {"messages", "temperature", "stream", "priority"} <= set(chat["properties"])
    assert not chat["additionalProperties"]
    assert set(chat["required"]) == {"messages", "model"}


def test_every_reference_leads_somewhere(description: dict[str, Any]) -> None:
    schemas = description["components"]["schemas"]
    found = set(references(description))
    assert found
    assert {name.removeprefix("#/components/schemas/") for name in found} <= set(schemas)


@pytest.mark.parametrize("path", BODIES)
def test_an_answer_has_the_published_form(http: httpx.Client, path: str) -> None:
    response = http.post(path, json=BODIES[path])
    assert response.status_code == 200, response.text
    RESPONSES[path].model_validate_json(response.content, strict=True)


@pytest.mark.parametrize("path", BODIES)
def test_an_error_has_the_published_form(http: httpx.Client, path: str) -> None:
    response = http.post(path, json=BODIES[path] | {"no_such_field": 1})
    assert response.status_code == 400
    ErrorResponse.model_validate_json(response.content, strict=True)


def test_models_have_the_published_form(http: httpx.Client) -> None:
    RESPONSES["/v1/models"].model_validate_json(http.get("/v1/models").content, strict=True)
    RESPONSES["/v1/models/{name:path}"].model_validate_json(http.get("/v1/models/m").content, strict=True)
