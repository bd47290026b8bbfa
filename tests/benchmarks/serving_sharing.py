"""What prefix caching, paging and continuous batching give, each against its absence."""

from __future__ import annotations

from gristmill.runtime.loadtest.workload import Shape, Workload
from tests.benchmarks.serving_bench import LOAD_COLUMNS, Bench
from tests.benchmarks.serving_front_end import bare_engine
from tests.benchmarks.static_batching import measure_static

__all__ = ["batching", "paging", "prefix_caching"]

_MIXED_OUTPUTS = (8, 8, 16, 16, 32, 32, 64, 512)
"""Most answers are short and a few are long, as in the traces of chat services."""


def prefix_caching(bench: Bench) -> None:
    """64 requests with one system prompt of 1,500 tokens: time to the first token."""
    workload = Workload(
        (Shape(32, 32),), concurrency=8, shared_prefix_tokens=1500, requests=16 if bench.quick else 64
    )
    bench.title(f"prefix caching: {workload.name}", *LOAD_COLUMNS)
    medians = []
    for options in (("--no-prefix-caching",), ()):
        with bench.own_server(*options) as server:
            run = bench.measure(server, workload)
            bench.load_line(options[0] if options else "prefix caching", run, server.resident_bytes())
        medians.append(run["ttft_ms"]["p50"])
    without, with_cache = medians
    bench.keep(
        "prefix caching: ttft_ms p50",
        with_cache,
        "ms",
        peer="no cache",
        peer_value=without,
        limit=0.2,
        at_most=True,
    )


def paging(bench: Bench) -> None:
    """Token slots that hold a token over those that requests have taken, in blocks of 16."""
    use = bare_engine(bench, 16, 16 if bench.quick else 48, 1024, 128, 512)["slot_use"]
    bench.title("paging: used over allocated slots", "mean", "wanted")
    bench.line("16 sequences, 1,024 in, 128 or 512 out", f"{use:.1%}", ">= 95%")
    bench.keep("paging: used over allocated slots", use, "", peer="all", peer_value=1.0, limit=0.95)


def batching(bench: Bench) -> None:
    """Answers of mixed length, in batches that end together and in steps that take what is there."""
    workload = Workload(
        tuple(Shape(32, tokens) for tokens in _MIXED_OUTPUTS),
        concurrency=16,
        requests=32 if bench.quick else 128,
    )
    options = ("--max-num-seqs", 16, "--no-prefix-caching")
    bench.title("batching: 16 at once, 32 in, 8 to 512 out", *LOAD_COLUMNS)
    with bench.own_server(*options) as server:
        static = measure_static(server.url, workload, 16)
        bench.load_line("static", static, server.resident_bytes())
    with bench.own_server(*options) as server:
        run = bench.measure(server, workload)
        bench.load_line("continuous", run, server.resident_bytes())
    bench.keep(
        "batching: mixed lengths",
        run["output_tokens_per_s"],
        "tok/s",
        peer="static batches",
        peer_value=static["output_tokens_per_s"],
        limit=3.0,
    )
