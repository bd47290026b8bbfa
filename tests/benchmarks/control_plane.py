"""How soon /health, /ready and /metrics answer while a long prompt is read: `make bench-control`.

The demo model in 4 bits on the native engine reads prompts of 4,000 tokens, with
the default settings and in a single step that takes seconds. Each request comes over a connection
of its own. Writes build/bench/control_plane.json.

    --repeats N       prompts of each setting, 3 by default
"""

from __future__ import annotations

import argparse
import json
import threading
import time
import urllib.request
from collections.abc import Sequence
from typing import Any

from tests.benchmarks.demo_model import BUILD
from tests.benchmarks.serving_systems import DEMO, demo_store, own_server
from tests.benchmarks.table import result_row, table_line, write_rows

COMMAND = "make bench-control"
LIMIT_MS = 50.0
PATHS = ("/health", "/ready", "/metrics")
PROMPT_TOKENS = 4000
SETTINGS = {
    "default": (),
    "one step": ("--max-num-batched-tokens", "4096", "--itl-target", "600000", "--stall", "600"),
}


def main() -> None:
    """Run the benchmark as asked."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--repeats", metavar="N", type=int, default=3)
    repeats = parser.parse_args().repeats
    store = demo_store()
    print(table_line(("milliseconds", "path", "requests", "median", "worst", "wanted"), first=14))
    rows: list[dict[str, Any]] = []
    for name, options in SETTINGS.items():
        with own_server(DEMO, store, *options) as server:
            times = _measure(server.url, repeats)
        for path, seconds in times.items():
            worst, median = 1000 * max(seconds), 1000 * sorted(seconds)[len(seconds) // 2]
            verdict = f"<= {LIMIT_MS:g} {'met' if worst <= LIMIT_MS else 'MISSED'}"
            cells = (name, path, str(len(seconds)), f"{median:.1f}", f"{worst:.1f}", verdict)
            print(table_line(cells, first=14))
            metric = f"{path} during a prefill, {name}: worst"
            rows.append(result_row(metric, worst, "limit", LIMIT_MS, "ms", COMMAND, 1.0))
    write_rows(BUILD / "control_plane.json", rows)


def _measure(url: str, repeats: int) -> dict[str, list[float]]:
    """Seconds of each answer that came while a prompt was being read."""
    times: dict[str, list[float]] = {path: [] for path in PATHS}
    for repeat in range(repeats):
        prompt = [1000 + repeat, *([500] * (PROMPT_TOKENS - 1))]  # no two begin alike
        reading = threading.Thread(target=_read_prompt, args=(url, prompt))
        reading.start()
        while reading.is_alive():
            for path in PATHS:
                started = time.perf_counter()
                with urllib.request.urlopen(f"{url}{path}", timeout=60) as answer:
                    answer.read()
                if reading.is_alive():
                    times[path].append(time.perf_counter() - started)
            time.sleep(0.01)
    return times


def _read_prompt(url: str, prompt: Sequence[int]) -> None:
    body = json.dumps({"model": DEMO, "prompt": list(prompt), "max_tokens": 1}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        answer.read()


if __name__ == "__main__":
    main()
