"""Replay of a real conversation trace at its own times."""

from __future__ import annotations

import os
from pathlib import Path

from gristmill.runtime.loadtest.metrics import ServiceLevel
from gristmill.runtime.loadtest.session import LoadTest
from gristmill.runtime.loadtest.trace import fit_rows, read_trace
from gristmill.runtime.loadtest.workload import Workload
from tests.benchmarks.demo_model import ROOT
from tests.benchmarks.serving_bench import LOAD_COLUMNS, Bench
from tests.benchmarks.serving_systems import WINDOW

__all__ = ["trace"]

NAME = "azure2023_conv.csv"
SPEED = 0.5
LEVEL = ServiceLevel(ttft_ms=2000.0, tpot_ms=100.0)
"""A reader's patience for the first word, and twice the reading speed after it."""


def trace(bench: Bench) -> None:
    """Half as fast as it was recorded, on a service of many machines; no request may fail."""
    folder = Path(os.environ.get("GRISTMILL_TEST_DATA", ROOT.parent / "shared" / "data"))
    rows = read_trace(folder / "traces" / NAME, 12 if bench.quick else 200)
    rows = fit_rows(rows, speed=SPEED, max_tokens=WINDOW // 2)
    workload = Workload((), rows=tuple(rows), trace=NAME)
    with bench.own_server("--max-num-seqs", 32) as server:
        (run,) = LoadTest(server.url, level=LEVEL).run([workload])
        bench.title(f"trace: {NAME}, {len(rows)} requests at speed {SPEED:g}", *LOAD_COLUMNS)
        bench.load_line("gristmill", run, server.resident_bytes())
    kept, goodput = run["service_level"]["kept"], run["goodput_rps"]
    bench.line(
        f"{run['errors']} errors, {kept} of {run['requests']} with TTFT <= 2 s and TPOT <= 100 ms",
        f"{goodput:.2f}/s",
    )
    bench.keep("trace: errors", run["errors"], "requests")
    bench.keep("trace: goodput", goodput, "requests/s", peer="all requests", peer_value=run["requests_per_s"])
