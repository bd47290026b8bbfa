"""Ours beside vLLM on the processor and llama.cpp's server, asked by the same client."""

from __future__ import annotations

from gristmill.facade import engine_folder
from gristmill.runtime.loadtest.workload import Shape, Workload
from gristmill.runtime.settings import EngineSettings
from tests.benchmarks.own_system import OwnSystem
from tests.benchmarks.serving_bench import LOAD_COLUMNS, Bench
from tests.benchmarks.serving_systems import llama_server, vllm_server
from tests.benchmarks.workloads import Workload as EngineWorkload

__all__ = ["peers"]

CONCURRENCY, PROMPT, OUTPUT = 32, 200, 64
WANTED = 1.9


def peers(bench: Bench) -> None:
    """32 clients, 200 tokens in and 64 out, nothing shared; and what the engine's own speed allows."""
    workload = Workload(
        (Shape(PROMPT, OUTPUT),), CONCURRENCY, requests=CONCURRENCY * (1 if bench.quick else 4)
    )
    bench.title(f"peers: {workload.name}", *LOAD_COLUMNS)
    with bench.own_server("--max-num-seqs", CONCURRENCY, "--no-prefix-caching") as server:
        run = bench.measure(server, workload, warmup=CONCURRENCY)
        bench.load_line("gristmill, 4 bits", run, server.resident_bytes())
    ours = float(run["output_tokens_per_s"])
    bound = _bound(bench)
    bench.line("  what prefill and decode allow", f"{bound:,.0f}")
    bench.keep("peers: concurrency 32", ours, "tok/s", peer="1/(in/prefill + out/decode)", peer_value=bound)
    if bench.alone:
        return
    for name, started, wanted in (
        ("llama-server, Q4_0", llama_server(CONCURRENCY, 512), None),
        ("vLLM, bfloat16", vllm_server(CONCURRENCY), WANTED),
    ):
        with started as server:
            run = bench.measure(server, workload, warmup=CONCURRENCY)
            bench.load_line(name, run, server.resident_bytes())
        theirs = float(run["output_tokens_per_s"])
        bench.keep("peers: concurrency 32", ours, "tok/s", peer=name, peer_value=theirs, limit=wanted)


def _bound(bench: Bench) -> float:
    """Output tokens per second if nothing cost time but reading prompts and full decode steps."""
    prefill = EngineWorkload("prefill", CONCURRENCY, PROMPT)
    decode = EngineWorkload("decode", CONCURRENCY, PROMPT + OUTPUT // 2, 16)
    system = OwnSystem(engine_folder(bench.ref, store=bench.store), EngineSettings(), (prefill, decode))
    try:
        prefill_speed = max(system.measure(prefill) for _ in range(2))
        decode_speed = max(system.measure(decode) for _ in range(3))
    finally:
        system.close()
    bench.keep("peers: prefill alone", prefill_speed, "tok/s")
    bench.keep("peers: decode 32 alone", decode_speed, "tok/s")
    return OUTPUT / (PROMPT / prefill_speed + OUTPUT / decode_speed)
