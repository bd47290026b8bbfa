"""llama.cpp and OpenVINO GenAI as systems of the benchmark, each in its own processes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gguf import GGUFReader

from tests.benchmarks.peers import (
    OPENVINO_MODEL,
    environment_python,
    gguf_model,
    llama_environment,
    llama_tool,
)
from tests.benchmarks.workloads import Storage, Workload

__all__ = ["LlamaCpp", "OpenVino"]

_BATCHED_TOKENS = 512


class LlamaCpp:
    """One GGUF type; a process a measurement. Keys and values are float16, as is usual there."""

    def __init__(self, kind: str, threads: int, kv_elements: int) -> None:
        self.name = f"llama.cpp {kind}"
        self._model = gguf_model(kind)
        self._threads = threads
        weights, head = _gguf_storage(self._model)
        self.storage = Storage(weights, 2 * kv_elements, f"head {head}, KV F16")

    def measure(self, workload: Workload) -> float:
        """By llama-bench, which is its faster tool for one sequence, else by llama-batched-bench."""
        if workload.kind == "prefill":
            return self._bench("-p", workload.context, "-n", 0)
        if workload.batch == 1:
            return self._bench("-p", 0, "-n", workload.steps, "-d", workload.context)
        sizes = {
            "-npp": workload.context,
            "-ntg": workload.steps,
            "-npl": workload.batch,
            "-c": workload.batch * (workload.context + workload.steps),
        }
        options = [str(word) for option in sizes.items() for word in option]
        output = self._tool("llama-batched-bench", *options, "--output-format", "jsonl")
        (result,) = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        return float(result["speed_tg"])

    def close(self) -> None:
        """Nothing is held."""

    def _bench(self, *options: str | int) -> float:
        (result,) = json.loads(self._tool("llama-bench", *options, "-r", 1, "-o", "json"))
        return float(result["avg_ts"])

    def _tool(self, name: str, *options: str | int) -> str:
        command = [str(llama_tool(name)), "-m", str(self._model), "-t", str(self._threads)]
        done = subprocess.run(
            [*command, *map(str, options)],
            env=llama_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
        return done.stdout


class OpenVino:
    """One process with a continuous-batching pipeline, which waits for work between measurements."""

    def __init__(self, precision: str, threads: int, kv_elements: int, workloads: Sequence[Workload]) -> None:
        """`precision` is that of its arithmetic: f32, bf16, or default for what it chooses."""
        self.name = "OpenVINO int4" if precision == "default" else f"OpenVINO {precision}"
        tokens = max(workload.batch * (workload.context + 256) for workload in workloads)
        cache = max(2, -(-tokens * kv_elements * 2 >> 30))
        script = Path(__file__).with_name("openvino_worker.py")
        command = [str(environment_python("openvino")), str(script), str(OPENVINO_MODEL)]
        self._process = subprocess.Popen(
            [*command, precision, str(threads), str(cache), str(_BATCHED_TOKENS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        loaded = self._answer()
        width = {"u8": 1, "uint8_t": 1, "i8": 1, "int8_t": 1}.get(loaded["kv_cache"], 2)
        weights = (OPENVINO_MODEL / "openvino_model.bin").stat().st_size
        note = f"head int8, KV {loaded['kv_cache']}"
        self.storage = Storage(weights, width * kv_elements, note)

    def measure(self, workload: Workload) -> float:
        """Prompts to the first token of each, or steps in which every sequence gains one token."""
        asked = {"batch": workload.batch, "context": workload.context, "steps": workload.steps}
        assert self._process.stdin is not None
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        result = self._answer()
        if result["tokens"] != workload.tokens:
            raise SystemExit(f"OpenVINO: {result['tokens']} tokens instead of {workload.tokens}")
        return float(result["tokens"]) / float(result["seconds"])

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise SystemExit("OpenVINO's process ended")


def _gguf_storage(model: Path) -> tuple[int, str]:
    """Bytes of all tensors, and the type of the head, which may be the embedding."""
    tensors = {tensor.name: tensor for tensor in GGUFReader(model).tensors}
    head = tensors.get("output.weight") or tensors["token_embd.weight"]
    weights = sum(int(tensor.n_bytes) for tensor in tensors.values())
    if "output.weight" in tensors:  # one row of the embedding is read, not all
        weights -= int(tensors["token_embd.weight"].n_bytes)
    return weights, head.tensor_type.name
