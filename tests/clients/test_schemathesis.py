"""Schemathesis over /openapi.json: no request that fits the schema, or just misses it, gets a 5xx."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.conftest import ADMIN_TOKEN, RunClient, RunningServer


def _aimed(schema: dict[str, Any]) -> dict[str, Any]:
    """The published schema with requests that reach the model: its name, and short answers."""
    for operations in schema["paths"].values():
        for operation in operations.values():
            for media in operation.get("requestBody", {}).get("content", {}).values():
                properties = media["schema"].get("properties", {})
                if "model" in properties:
                    properties["model"] = {"const": "tiny"}
                if "max_tokens" in properties:
                    properties["max_tokens"] = {"type": "integer", "minimum": 0, "maximum": 4}
                    media["schema"]["required"] = sorted({*media["schema"]["required"], "max_tokens"})
    return schema


@pytest.mark.timeout(900)
def test_no_generated_request_is_answered_with_a_fault_of_ours(
    server: RunningServer, run_client: RunClient, tmp_path: Path
) -> None:
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
    assert "No issues found" in done.stdout or "passed" in done.stdout
    assert httpx.get(f"{server.url}/health").status_code == 200
