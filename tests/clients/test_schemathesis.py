"""Schemathesis over /openapi.json: no request that fits the schema, or just misses it, gets a 5xx."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.conftest import ADMIN_TOKEN, RunClient
from tests.served import MODEL, RunningServer, read_metrics


def _prompt(properties: dict[str, Any]) -> object:
    return "Once" if "prompt" in properties else [{"role": "user", "content": "Hi"}]


def _aimed(description: dict[str, Any]) -> dict[str, Any]:
    """The published description with requests that reach the model: its name, and short answers."""
    for schema in description["components"]["schemas"].values():
        properties = schema.get("properties", {})
        if "model" in properties and "max_tokens" in properties:
            properties["model"] = {"const": MODEL}
            properties["max_tokens"] = {"type": "integer", "minimum": 0, "maximum": 4}
            properties["prompt" if "prompt" in properties else "messages"] = {"const": _prompt(properties)}
            schema["required"] = sorted({*schema["required"], "max_tokens"})
    return description


@pytest.mark.timeout(900)
def test_no_generated_request_is_answered_with_a_fault_of_ours(
    server: RunningServer, run_client: RunClient, tmp_path: Path
) -> None:
    accepted = read_metrics(server.url)["request_accepted_total"]
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(_aimed(httpx.get(f"{server.url}/openapi.json").json())))
    done = run_client(
        "schemathesis",
        "schemathesis",
        [
            *("run", path, "--url", server.url, "-H", f"Authorization: Bearer {ADMIN_TOKEN}"),
            *("--checks", "not_a_server_error", "--phases", "coverage,fuzzing"),
            *("--max-examples", 10, "--generation-deterministic", "--request-timeout", 30),
        ],
    )
    generated = re.search(r"(\d+) generated", done.stdout)
    assert generated is not None
    assert int(generated[1]) > 500
    assert read_metrics(server.url)["request_accepted_total"] > accepted
