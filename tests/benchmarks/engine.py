"""The engine beside its peers and the machine's own limits: `make bench-engine`.

Prefill of 512 tokens, and decode at batches of 1 to 64 after prompts of 256 and
2,048 tokens. The systems take turns within each row; the best of a few repeats
counts. Prints tokens per second with the ratio to each peer, then what each
must read for a token and how much of the machine's limit ours reaches. Writes
build/bench/engine.json.

    --quick           four rows at a context of 256, within a minute
    --rows NAME       rows whose name contains NAME, such as "decode 8"
    --engine WHERE    an artifact's REF, or an engine folder; else the demo model in
                      4 bits, symmetric groups of 64, made under build/bench
    --target NAME     the engine of the artifact, native-x86 or reference
    --compute TYPE    number format of activations
    --kv-cache-dtype TYPE
    --threads N       for every system; else as many as this process may use
    --gguf TYPE       a further GGUF type of llama.cpp (Q4_1, Q8_0); may be repeated
    --alone           no peers
    --shape 7b        random weights of that shape (3.9 GB under build/bench), no peers
    --remove          delete the random weights afterwards
    --profile         split a step by operation
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gristmill.artifacts.engines import open_engine
from gristmill.facade import default_store
from gristmill.runtime.doctor import measure_speeds
from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.errors import GristmillError
from gristmill.runtime.kernels import _native
from gristmill.runtime.kernels.instruction_set import chosen_instruction_set
from gristmill.runtime.machine import cpu_limits, processor_name
from gristmill.runtime.settings import EngineSettings
from tests.benchmarks.demo_engine import demo_engine
from tests.benchmarks.demo_model import BUILD
from tests.benchmarks.engine_report import Measured, json_rows, print_limits, print_profile, print_speeds
from tests.benchmarks.own_system import OwnSystem
from tests.benchmarks.peer_systems import LlamaCpp, OpenVino
from tests.benchmarks.peers import GGUF_TYPES, require_peers
from tests.benchmarks.random_engine import SHAPES, random_engine
from tests.benchmarks.roofline import ceiling, count_work
from tests.benchmarks.table import write_rows
from tests.benchmarks.workloads import ROWS, SHAPE_ROWS, System, Workload

NATIVE = "native-x86"
QUICK = ("prefill 512", "decode 1 at 256", "decode 8 at 256", "decode 32 at 256")
COMMAND = "make bench-engine"


def main() -> None:
    """Run the benchmark as asked."""
    options = _options()
    threads = options.threads or cpu_limits().effective
    workloads = _workloads(options)
    own = OwnSystem(_engine_folder(options), _settings(options), workloads)
    peers = [] if options.alone or options.shape else _peers(options, threads, own, workloads)
    try:
        _print_setting(own, peers, threads)
        measured = []
        for workload in workloads:
            measured.append(_measure(workload, own, peers, threads, repeats=2 if options.quick else 3))
            print_speeds(measured[-1], first=len(measured) == 1)
        print_limits(measured)
        if options.profile:
            print_profile(own.profile())
    finally:
        for system in (own, *peers):
            system.close()
    if options.shape and options.remove:
        shutil.rmtree(_shape_folder(options.shape))
    command = f"{COMMAND} ARGS={shlex.quote(shlex.join(sys.argv[1:]))}" if sys.argv[1:] else COMMAND
    write_rows(BUILD / "engine.json", [row for result in measured for row in json_rows(result, command)])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name in ("--quick", "--alone", "--remove", "--profile"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--rows", default="", metavar="NAME")
    parser.add_argument("--engine", metavar="WHERE")
    parser.add_argument("--target", default=NATIVE)
    parser.add_argument("--compute")
    parser.add_argument("--kv-cache-dtype")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--gguf", action="append", default=[], choices=GGUF_TYPES[1:])
    parser.add_argument("--shape", choices=sorted(SHAPES))
    return parser.parse_args()


def _workloads(options: argparse.Namespace) -> list[Workload]:
    rows = list(SHAPE_ROWS if options.shape else ROWS)
    if options.quick and not options.shape:
        rows = [row for row in rows if row.name in QUICK]
    chosen = [row for row in rows if options.rows in row.name]
    if not chosen:
        raise SystemExit(f"no row is named like {options.rows!r}: {', '.join(row.name for row in rows)}")
    return [replace(row, steps=min(row.steps, 16)) for row in chosen] if options.quick else chosen


def _settings(options: argparse.Namespace) -> EngineSettings:
    return EngineSettings(
        compute=options.compute,
        kv_cache_dtype=options.kv_cache_dtype,
        threads=options.threads,
        profile=options.profile,
    )


def _engine_folder(options: argparse.Namespace) -> EngineFolder:
    if options.shape:
        folder = _shape_folder(options.shape)
        random_engine(SHAPES[options.shape], folder)
        return EngineFolder(options.shape, NATIVE, folder, folder)
    if options.engine is None:
        return demo_engine(BUILD / "engine", options.target)
    folder = Path(options.engine)
    if folder.is_dir() and not (folder / "manifest.json").exists():
        return EngineFolder(folder.name, options.target, folder, folder)
    return open_engine(default_store().resolve(options.engine), options.target)


def _shape_folder(shape: str) -> Path:
    return BUILD / f"random-{shape}"


def _peers(
    options: argparse.Namespace, threads: int, own: OwnSystem, workloads: Sequence[Workload]
) -> list[System]:
    require_peers("llama-cpp", "openvino")
    elements = own.plan.kv_elements_per_token
    kinds = ["Q4_0", *options.gguf]
    # Where a machine has tiles, its own choice of arithmetic suits prompts and the other one decoding.
    precisions = ("default",) if options.quick else ("default", "f32")
    return [
        *(LlamaCpp(kind, threads, elements) for kind in kinds),
        *(OpenVino(precision, threads, elements, workloads) for precision in precisions),
    ]


def _print_setting(own: OwnSystem, peers: Sequence[System], threads: int) -> None:
    kernels = ", ".join(f"{kind} {kernel}" for kind, kernel in own.info.kernels.items())
    print(f"{processor_name()}, {threads} threads, load average {os.getloadavg()[0]:.1f}")
    print(f"{own.name}: compute {own.compute}, {kernels}; loaded in {own.load_seconds:.2f} s")
    for system in (own, *peers):
        storage = system.storage
        sizes = (
            f"{storage.weights / 1e6:.1f} MB of weights a step, {storage.kv_token:,.0f} B of cache a token"
        )
        print(f"  {system.name:<22} {sizes} ({storage.note})")


def _measure(
    workload: Workload, own: OwnSystem, peers: Sequence[System], threads: int, repeats: int
) -> Measured:
    """The systems in turn, `repeats` times; the ceiling from speeds measured just before."""
    work = {system.name: count_work(own.plan, system.storage, workload) for system in (own, *peers)}
    buffer = int(max(64 << 20, work[own.name].bytes / (workload.steps or 1)))
    speeds = measure_speeds(chosen_instruction_set(_native.instruction_sets()), buffer, threads)
    best: dict[str, float] = {}
    for _ in range(repeats):
        for system in (own, *peers):
            best[system.name] = max(best.get(system.name, 0.0), system.measure(workload))
    ours = best.pop(own.name)
    return Measured(
        workload=workload,
        ours=ours,
        peers=best,
        bytes_per_token={name: counted.bytes_per_token for name, counted in work.items()},
        multiply_adds_per_token=(work[own.name].linear + work[own.name].attention) / workload.tokens,
        ceiling=ceiling(work[own.name], speeds, own.compute),
        speeds=speeds,
        load=os.getloadavg()[0],
    )


if __name__ == "__main__":
    try:
        main()
    except GristmillError as error:
        raise SystemExit(f"error: {error.line()}") from error
