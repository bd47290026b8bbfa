"""guidellm and aiperf: both drive the server to the end and count what it did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import RunClient
from tests.served import RunningServer

pytestmark = [pytest.mark.load_generators, pytest.mark.timeout(1200)]


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_guidellm_completes_all_requests(
    server: RunningServer, run_client: RunClient, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    run_client(
        "guidellm",
        "guidellm",
        [
            *("run", "--backend", f"kind=openai_http,target={server.url},model=tiny"),
            *("--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=6"),
            *("--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=8"),
            *("--tokenizer", f"kind=huggingface_auto,model={server.tokenizer}"),
            *("--output", f"kind=json,path={report}", "--disable-console"),
        ],
    )
    (benchmark,) = _read(report)["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (6, 0)


def test_aiperf_completes_all_requests(server: RunningServer, run_client: RunClient, tmp_path: Path) -> None:
    run_client(
        "aiperf",
        "aiperf",
        [
            *("profile", "--model", "tiny", "--url", server.url, "--endpoint-type", "chat", "--streaming"),
            *("--concurrency", 2, "--request-count", 6, "--tokenizer", server.tokenizer, "--ui", "none"),
            *("--synthetic-input-tokens-mean", 32, "--output-tokens-mean", 8),
            *("--output-artifact-dir", tmp_path / "out"),
        ],
    )
    report = _read(tmp_path / "out" / "profile_export_aiperf.json")
    assert report["request_count"]["avg"] == 6
    assert not report.get("error_summary")
