"""What HTTP costs: streams through the server against the same engine called in its process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

from gristmill.runtime.loadtest.workload import Shape, Workload
from tests.benchmarks.serving_bench import Bench

__all__ = ["bare_engine", "front_end"]

PROMPT, OUTPUT = 64, 128
WANTED = {1: 0.85, 8: 0.85, 32: 0.75}


def front_end(bench: Bench) -> None:
    """The best of a few turns each, so that a busy moment hits neither alone."""
    bench.title(
        f"front end: {PROMPT} + {OUTPUT} tokens", "bare tok/s", "HTTP tok/s", "ratio", "wanted", "client CPU"
    )
    for concurrency, wanted in WANTED.items():
        if bench.quick and concurrency != 8:
            continue
        requests = max(8, 4 * concurrency)
        workload = Workload((Shape(PROMPT, OUTPUT),), concurrency, requests=requests)
        bare, http, client = 0.0, 0.0, 0.0
        for _ in range(1 if bench.quick else 3):
            shape = (concurrency, requests, PROMPT, OUTPUT)
            bare = max(bare, bare_engine(bench, *shape)["output_tokens_per_s"])
            with bench.own_server("--max-num-seqs", concurrency, "--no-prefix-caching") as server:
                run = bench.measure(server, workload, warmup=concurrency, token_ids=True)
            if run["output_tokens_per_s"] > http:
                http, client = run["output_tokens_per_s"], run["client_cpu_share"]
        name = f"concurrency {concurrency}"
        bench.line(
            name, f"{bare:,.0f}", f"{http:,.0f}", f"{http / bare:.0%}", f"{wanted:.0%}", f"{client:.0%}"
        )
        bench.keep(f"front end: {name}", http, "tok/s", peer="bare engine", peer_value=bare, limit=wanted)


def bare_engine(bench: Bench, *numbers: int) -> dict[str, float]:
    """What `bare_engine.py` prints for concurrency, requests, prompt tokens and output tokens."""
    command: Sequence[str] = [
        sys.executable,
        "-m",
        "tests.benchmarks.bare_engine",
        bench.ref,
        str(bench.store),
    ]
    done = subprocess.run([*command, *map(str, numbers)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the bare engine failed:\n{done.stderr[-2000:]}")
    answer: dict[str, float] = json.loads(done.stdout)
    return answer
