"""Serving beside peers and beside its own absence: `make bench-serving`.

Every system is a server process of its own, asked over HTTP by the load
generator of `gristmill bench`, whose share of a processor stands in the last
column. Writes build/bench/serving.json.

    ladder            from one request at a time to all that serving does
    front-end         HTTP streams against the engine in its process
    peers             vLLM and llama-server, and the bound of prefill and decode
    interference      the worst gap of a stream while long prompts arrive
    prefix-caching    first tokens with and without
    paging            used over allocated slots of the cache
    batching          static against continuous, mixed lengths
    trace             a real trace at its own times
    control-plane     /health, /ready and /metrics during a long prompt

    --quick           smaller loads and no peers, within a minute
    --parts NAME...   some of these
    --alone           no peers
    --engine REF      an artifact; else the demo model in 4 bits, made under build/bench
    --store DIR       the store of that artifact
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from gristmill.facade import default_store
from gristmill.runtime.errors import GristmillError
from gristmill.runtime.machine import cpu_limits, processor_name
from tests.benchmarks.demo_model import BUILD
from tests.benchmarks.peers import require_peers
from tests.benchmarks.serving_bench import Bench
from tests.benchmarks.serving_front_end import front_end
from tests.benchmarks.serving_ladder import ladder
from tests.benchmarks.serving_latency import control_plane, interference
from tests.benchmarks.serving_peers import peers
from tests.benchmarks.serving_sharing import batching, paging, prefix_caching
from tests.benchmarks.serving_systems import DEMO, demo_store
from tests.benchmarks.serving_trace import trace
from tests.benchmarks.table import write_rows

COMMAND = "make bench-serving"
PARTS: Mapping[str, Callable[[Bench], None]] = {
    "ladder": ladder,
    "front-end": front_end,
    "peers": peers,
    "interference": interference,
    "prefix-caching": prefix_caching,
    "paging": paging,
    "batching": batching,
    "trace": trace,
    "control-plane": control_plane,
}


def main() -> None:
    """Run the benchmark as asked; what was measured before a failure is written too."""
    parser = argparse.ArgumentParser(
        prog=COMMAND, description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--parts", nargs="+", choices=sorted(PARTS), default=list(PARTS), metavar="NAME")
    parser.add_argument("--engine", metavar="REF")
    parser.add_argument("--store", metavar="DIR", type=Path)
    options = parser.parse_args()
    alone = options.alone or options.quick
    if not alone:
        require_peers("llama-cpp", "vllm")
    command = f"{COMMAND} ARGS={shlex.quote(shlex.join(sys.argv[1:]))}" if sys.argv[1:] else COMMAND
    ref, store = (
        (options.engine, default_store(options.store).path) if options.engine else (DEMO, demo_store())
    )
    bench = Bench(ref, store, options.quick, alone, command)
    print(f"{processor_name()}, {cpu_limits().effective} processors, load average {os.getloadavg()[0]:.1f}")
    try:
        for name in options.parts:
            PARTS[name](bench)
    finally:
        write_rows(BUILD / "serving.json", bench.rows)


if __name__ == "__main__":
    try:
        main()
    except GristmillError as error:
        raise SystemExit(f"error: {error.line()}") from error
