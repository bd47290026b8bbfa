"""`gristmill bench REF`: it starts the server that it measures, and leaves none behind."""

from __future__ import annotations

from collections.abc import Iterator

import psutil

from tests.command_line import CommandLine


def test_an_artifact_is_served_for_as_long_as_it_is_measured(built: CommandLine) -> None:
    before = set(_servers(built))
    load = ("--requests", 4, "--concurrency", 2, "--prompt-tokens", 16, "--output-tokens", 4)
    run = built.json("bench", "tiny", *load, "--serve-options", "--max-num-seqs 2")
    assert (run["requests"], run["errors"], run["output_tokens"]) == (4, 0, 16)
    assert run["prompt_tokens"] == 4 * 16
    assert run["environment"]["ref"] == "tiny"
    assert run["environment"]["resident_bytes"] > 0
    assert set(_servers(built)) <= before


def _servers(built: CommandLine) -> Iterator[psutil.Process]:
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "serve" in words and str(built.store) in words:
            yield process
