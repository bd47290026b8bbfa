"""The ladder: what each idea of a serving system adds, one rung after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.runtime.loadtest.workload import Shape, Workload
from tests.benchmarks.serving_bench import LOAD_COLUMNS, Bench, Run
from tests.benchmarks.serving_systems import naive_service
from tests.benchmarks.static_batching import measure_static

__all__ = ["ladder"]

CONCURRENCY = 32
WANTED = 30.0
_BATCH = 8


@dataclass(frozen=True, slots=True)
class Rung:
    """Options of our server; `static` sends batches of that size."""

    name: str
    options: Sequence[object]
    static: int | None = None


RUNGS = (
    Rung("static batching, 8", ("--max-num-seqs", _BATCH, "--no-prefix-caching"), _BATCH),
    Rung("continuous batching, 8", ("--max-num-seqs", _BATCH, "--no-prefix-caching")),
    Rung("int8 KV, 16", ("--max-num-seqs", 16, "--kv-cache-dtype", "int8", "--no-prefix-caching")),
    Rung("prefix caching, 16", ("--max-num-seqs", 16, "--kv-cache-dtype", "int8")),
    Rung("tuned batch, 32", ("--max-num-seqs", 32, "--kv-cache-dtype", "int8")),
)


def ladder(bench: Bench) -> None:
    """500 shared and 32 own tokens in, 128 out, 32 clients."""
    workload = Workload(
        (Shape(32, 128),),
        concurrency=CONCURRENCY,
        shared_prefix_tokens=500,
        requests=32 if bench.quick else 128,
    )
    bench.title(f"ladder: {workload.name}", *LOAD_COLUMNS)
    naive = None if bench.alone else _naive(bench, workload)
    for rung in RUNGS:
        with bench.own_server(*rung.options) as server:
            if rung.static is None:
                run = bench.measure(server, workload)
            else:
                run = measure_static(server.url, workload, rung.static)
            _keep(bench, rung.name, run, server.resident_bytes())
    if naive is not None:
        bench.keep(
            "ladder: top rung",
            run["output_tokens_per_s"],
            "tok/s",
            peer="naive transformers",
            peer_value=naive,
            limit=WANTED,
        )


def _naive(bench: Bench, workload: Workload) -> float:
    """As many requests as there are clients, so that the last waits for all others."""
    few = Workload(workload.shapes, CONCURRENCY, shared_prefix_tokens=500, requests=CONCURRENCY)
    with naive_service() as server:
        run = bench.measure(server, few, warmup=1)
        _keep(bench, "naive transformers, bfloat16", run, server.resident_bytes())
    return float(run["output_tokens_per_s"])


def _keep(bench: Bench, name: str, run: Run, resident: int) -> None:
    bench.load_line(name, run, resident)
    bench.keep(f"ladder: {name}", run["output_tokens_per_s"], "tok/s")
    for metric in ("ttft_ms", "tpot_ms"):
        if run[metric]["p50"] is not None:
            bench.keep(f"ladder: {name}: {metric} p50", run[metric]["p50"], "ms")
    bench.keep(f"ladder: {name}: memory", resident / 1e6, "MB")
