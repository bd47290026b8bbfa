"""Schemathesis over /openapi.json: no request that fits the schema, or just misses it, gets a 5xx."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.conftest import ADMIN_TOKEN, RunClient
from tests.served import RunningServer, read_metrics


def _aimed(schema: dict[str, Any]) -> dict[str, Any]:
    """The published schema with requests that reach the model: its name, and short answers."""
    for name, form in schema["components"]["schemas"].items():
        properties = form.get("properties", {})
        if not name.endswith("Request"):
            continue
        if "model" in properties:
            properties["model"] = {"const": "tiny"}
        if "max_tokens" in properties:
            properties["max_tokens"] = {"type": "integer", "minimum": 0, "maximum": 4}
            form["required"] = sorted({*form["required"], "max_tokens"})
    return schema


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
    assert read_metrics(server.url)["request_accepted_total"] > 20 + accepted
