"""The published description of the API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from gristmill.runtime.engine import LLMEngine


def test_every_path_is_described_with_its_method_and_body(
    make_engine: Callable[..., LLMEngine], serve: Callable[..., Any]
) -> None:
    paths = httpx.get(f"{serve(m=make_engine()).url}/openapi.json").json()["paths"]
    assert {path: list(operations) for path, operations in paths.items()} == {
        "/v1/completions": ["post"],
        "/v1/chat/completions": ["post"],
        "/v1/models": ["get"],
        "/v1/models/{name}": ["get"],
        "/health": ["get"],
        "/metrics": ["get"],
    }
    body = paths["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"messages", "temperature", "stream"} <= set(body["properties"])
