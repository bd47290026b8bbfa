"""Servers of the serving benchmark, each a process of its own that ends with its measurement."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from gristmill.facade import build
from gristmill.runtime.loadtest.server_process import started_server
from gristmill.runtime.machine import cpu_limits
from tests.benchmarks.demo_model import BUILD, MODEL, ROOT
from tests.benchmarks.peers import ORIGINAL, environment_python, gguf_model, llama_environment, llama_tool

__all__ = [
    "DEMO",
    "WINDOW",
    "Server",
    "demo_store",
    "llama_server",
    "naive_service",
    "own_server",
    "vllm_server",
]

DEMO = "serving"
WINDOW = 8192

_READY_SECONDS = 300.0
_RECIPE = f"""\
name: {DEMO}
model: {MODEL}
quantize: {{scheme: W4A16, group_size: 64, method: rtn}}
compile: [native-x86]
"""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    url: str
    process_id: int

    def resident_bytes(self) -> int:
        """Memory of its process and of those that it started; shared pages count in each."""
        process = psutil.Process(self.process_id)
        return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))


def demo_store() -> Path:
    """A store with the demo model in 4 bits and its native engine, named `DEMO`."""
    folder = BUILD / "serving"
    folder.mkdir(parents=True, exist_ok=True)
    recipe = folder / "serving.yaml"
    recipe.write_text(_RECIPE)
    build(recipe, store=folder / "store")
    return folder / "store"


@contextmanager
def own_server(ref: str, store: Path, *options: object) -> Iterator[Server]:
    """Ours, with these options of `gristmill serve`."""
    command = [sys.executable, "-m", "gristmill.cli.app", "serve", ref, "--store", str(store)]
    command += ["--port", "0", "--json", "--grace", "1", "--log-level", "warning", *map(str, options)]
    with started_server(command) as server:
        yield Server(server.url, server.process_id)


@contextmanager
def naive_service() -> Iterator[Server]:
    """transformers, one request at a time."""
    with started_server([sys.executable, "-m", "tests.benchmarks.naive_service", str(ORIGINAL)]) as server:
        yield Server(server.url, server.process_id)


@contextmanager
def llama_server(slots: int, window: int) -> Iterator[Server]:
    """llama.cpp's server on the Q4_0 file: `slots` sequences of `window` tokens each, no cached prefixes."""
    port = _free_port()
    command = [str(llama_tool("llama-server")), "-m", str(gguf_model("Q4_0")), "--port", str(port)]
    command += ["-t", str(cpu_limits().effective), "-np", str(slots), "-c", str(slots * window)]
    command += ["--no-ui", "--no-cache-prompt", "--cache-ram", "0"]
    with _started(command, llama_environment(), port, "llama-server") as server:
        yield server


@contextmanager
def vllm_server(max_num_seqs: int) -> Iterator[Server]:
    """vLLM in bfloat16, on all processors; no cached prefixes."""
    port = _free_port()
    command = [str(environment_python("vllm").with_name("vllm")), "serve", str(ORIGINAL)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-num-seqs", str(max_num_seqs)]
    command += ["--no-enable-prefix-caching", "--max-model-len", str(WINDOW)]
    environment = {
        **os.environ,
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{cpu_limits().effective - 1}",
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with _started(command, environment, port, "vLLM") as server:
        yield server


@contextmanager
def _started(
    command: Sequence[str], environment: Mapping[str, str], port: int, name: str
) -> Iterator[Server]:
    """A server from its process's start, over its being ready, to its end; its log is under build/bench."""
    log = BUILD / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    server = Server(f"http://127.0.0.1:{port}", process.pid)
    try:
        _await_ready(server, process, name, log)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_ready(server: Server, process: subprocess.Popen[bytes], name: str, log: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{server.url}/v1/models", timeout=5) as answer:
                json.load(answer)
                return
        except (OSError, ValueError):
            time.sleep(0.2)
    raise SystemExit(f"{name} did not become ready; {log.relative_to(ROOT)} says why")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
