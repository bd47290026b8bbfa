"""`gristmill bench REF`: it starts the server that it measures, and leaves none behind."""

from __future__ import annotations

import psutil

from tests.command_line import CommandLine


def test_an_artifact_is_served_for_as_long_as_it_is_measured(built: CommandLine) -> None:
    load = ("--requests", 4, "--concurrency", 2, "--prompt-tokens", 16, "--output-tokens", 4)
    run = built.json("bench", "tiny", *load, "--serve-options", "--max-num-seqs 2")
    assert (run["requests"], run["errors"], run["output_tokens"]) == (4, 0, 16)
    assert run["prompt_tokens"] == 4 * 16
    assert run["environment"]["ref"] == "tiny"
    assert run["environment"]["resident_bytes"] > 0
    left = [process for process in psutil.process_iter(["cmdline"]) if _serves(process, built)]
    assert not left


def _serves(process: psutil.Process, built: CommandLine) -> bool:
    words = process.info["cmdline"] or []
    return "serve" in words and str(built.store) in words
