"""`gristmill bench REF`: it starts the server that it measures, and leaves none behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

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


def test_a_killed_bench_leaves_no_server_behind(built: CommandLine) -> None:
    before = set(_servers(built))
    load = ("--requests", 100_000, "--prompt-tokens", 16, "--output-tokens", 400)
    bench = built.start("bench", "tiny", *load)
    try:
        _wait_until(lambda: bool(set(_servers(built)) - before))
    finally:
        bench.kill()
        bench.communicate(timeout=60)
    _wait_until(lambda: set(_servers(built)) <= before)


def _wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.05)


def _servers(built: CommandLine) -> Iterator[psutil.Process]:
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "serve" in words and str(built.store) in words:
            yield process
