"""From the start of a process to its first token, and the memory that it holds: `make bench-start`.

An artifact with a native engine is served by a new process, is asked for one
token over HTTP and ends; `gristmill chat` answers one token too. The best of a
few repeats counts, after one that only fills the page cache. Resident memory is
compared with the engine's weights and 150 MB, with nothing for the few cached
tokens. Writes build/bench/start.json.

    --engine REF      an artifact; else the demo model in 4 bits, made under build/bench
    --store DIR       the store of that artifact
    --repeats N       5 by default
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gristmill.facade import build, default_store, engine_folder
from gristmill.runtime.executors.load import open_engine
from tests.benchmarks.demo_model import BUILD, MODEL
from tests.benchmarks.table import result_row, table_line, write_rows

COMMAND = "make bench-start"
FIRST_TOKEN_SECONDS = 1.0
MEMORY_BESIDE = 150e6

_RECIPE = f"""\
name: start
model: {MODEL}
quantize: {{scheme: W4A16, group_size: 64, method: rtn}}
compile: [native-x86]
"""


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds since the process was started, and bytes resident after the first token."""

    ready: float
    first_token: float
    resident: int
    private: int


def main() -> None:
    """Run the benchmark as asked."""
    options = _options()
    ref, store = (options.engine, options.store) if options.engine else ("start", _build_demo())
    runs = [_serve(ref, store) for _ in range(options.repeats + 1)][1:]
    chats = [_chat(ref, store) for _ in range(options.repeats + 1)][1:]
    allowed = _allowed_memory(ref, store)
    best = min(runs, key=lambda run: run.first_token)
    resident = max(run.resident for run in runs)
    entries = [
        ("serve: start to ready", best.ready, None, "s"),
        ("serve: start to first token", best.first_token, FIRST_TOKEN_SECONDS, "s"),
        ("chat: start to end of one token", min(chats), FIRST_TOKEN_SECONDS, "s"),
        ("serve: resident memory", resident / 1e6, allowed / 1e6, "MB"),
        ("serve: of it not mapped files", max(run.private for run in runs) / 1e6, None, "MB"),
    ]
    print(table_line(("", "ours", "wanted", ""), first=36))
    for name, value, limit, unit in entries:
        wanted = "" if limit is None else f"<= {limit:.3g} {'met' if value <= limit else 'MISSED'}"
        print(table_line((name, f"{value:.3g} {unit}", wanted), first=36, width=16))
    command = f"{COMMAND} ARGS={shlex.quote(shlex.join(sys.argv[1:]))}" if sys.argv[1:] else COMMAND
    rows = [
        result_row(name, value, "limit", limit, unit, command, None if limit is None else 1.0)
        for name, value, limit, unit in entries
    ]
    write_rows(BUILD / "start.json", rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--engine", metavar="REF")
    parser.add_argument("--store", metavar="DIR", type=Path)
    parser.add_argument("--repeats", metavar="N", type=int, default=5)
    return parser.parse_args()


def _build_demo() -> Path:
    folder = BUILD / "start"
    folder.mkdir(parents=True, exist_ok=True)
    recipe = folder / "start.yaml"
    recipe.write_text(_RECIPE)
    build(recipe, store=folder / "store")
    return folder / "store"


def _serve(ref: str, store: Path | None) -> Start:
    """One server process from its start to its first token."""
    start = time.perf_counter()
    server = subprocess.Popen(
        _command("serve", ref, "--port", "0", store=store),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None
    try:
        line = server.stdout.readline()
        if " at http" not in line:
            raise SystemExit(f"gristmill serve {ref} ended with {server.wait()}")
        ready = time.perf_counter() - start
        _one_token(line.split(" at ")[1].split()[0], line.split()[1])
        first_token = time.perf_counter() - start
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{server.pid}/status").read_text().splitlines()
        )
        sizes = [1024 * int(status[name].split()[0]) for name in ("VmRSS", "RssAnon")]
        return Start(ready, first_token, *sizes)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=60)


def _one_token(url: str, model: str) -> None:
    body = json.dumps({"model": model, "prompt": "Once upon a time", "max_tokens": 1}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        json.load(answer)


def _chat(ref: str, store: Path | None) -> float:
    start = time.perf_counter()
    command = _command("chat", ref, "Hello", "--max-tokens", "1", store=store)
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def _command(*arguments: str, store: Path | None) -> Sequence[str]:
    return [
        sys.executable,
        "-m",
        "gristmill.cli.app",
        *arguments,
        "--store",
        str(default_store(store).path),
    ]


def _allowed_memory(ref: str, store: Path | None) -> float:
    """Weights, and what everything else may take."""
    opened = open_engine(engine_folder(ref, store=store))
    return opened.weight_bytes(opened.modes.computes[0]) + MEMORY_BESIDE


if __name__ == "__main__":
    main()
