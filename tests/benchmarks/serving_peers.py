"""Ours beside vLLM on the processor and llama.cpp's server, asked by the same client."""

from __future__ import annotations

from gristmill.facade import engine_folder
from gristmill.runtime.kernels import _native
from gristmill.runtime.kernels.instruction_set import chosen_instruction_set
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
    """32 clients, 200 tokens in and 64 out, nothing shared; and what the engine's own speed allows.

    Ours runs as it comes, and as one would run it for throughput; peers are held against the latter.
    """
    workload = Workload(
        (Shape(PROMPT, OUTPUT),), CONCURRENCY, requests=CONCURRENCY * (1 if bench.quick else 4)
    )
    bench.title(f"peers: {workload.name}", *LOAD_COLUMNS)
    ours = 0.0
    for name, settings in (("as it comes", EngineSettings()), ("for throughput", _for_throughput())):
        ours = _ours(bench, workload, name, settings)
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


def _for_throughput() -> EngineSettings:
    """Long steps, a small cache, and the arithmetic that reads prompts fastest on this machine."""
    has_tiles = chosen_instruction_set(_native.instruction_sets()) == "amx"
    return EngineSettings(
        compute="bfloat16" if has_tiles else "int8", kv_cache_dtype="int8", itl_target_ms=250.0
    )


def _ours(bench: Bench, workload: Workload, name: str, settings: EngineSettings) -> float:
    options: list[object] = ["--itl-target", settings.itl_target_ms, "--kv-cache-dtype", settings.kv_dtype]
    if settings.compute is not None:
        options += ["--compute", settings.compute]
    with bench.own_server("--max-num-seqs", CONCURRENCY, "--no-prefix-caching", *options) as server:
        run = bench.measure(server, workload, warmup=CONCURRENCY)
        bench.load_line(f"gristmill, 4 bits, {name}", run, server.resident_bytes())
    ours = float(run["output_tokens_per_s"])
    bound = _bound(bench, name, settings)
    bench.line("  what prefill and decode allow", f"{bound:,.0f}")
    peer = "1/(in/prefill + out/decode)"
    bench.keep(f"peers: concurrency 32, {name}", ours, "tok/s", peer=peer, peer_value=bound)
    return ours


def _bound(bench: Bench, name: str, settings: EngineSettings) -> float:
    """Output tokens per second if nothing cost time but reading prompts and full decode steps."""
    prefill = EngineWorkload("prefill", CONCURRENCY, PROMPT)
    decode = EngineWorkload("decode", CONCURRENCY, PROMPT + OUTPUT // 2, 16)
    system = OwnSystem(engine_folder(bench.ref, store=bench.store), settings, (prefill, decode))
    try:
        prefill_speed = max(system.measure(prefill) for _ in range(2))
        decode_speed = max(system.measure(decode) for _ in range(3))
    finally:
        system.close()
    bench.keep(f"peers: prefill alone, {name}", prefill_speed, "tok/s")
    bench.keep(f"peers: decode 32 alone, {name}", decode_speed, "tok/s")
    return OUTPUT / (PROMPT / prefill_speed + OUTPUT / decode_speed)
