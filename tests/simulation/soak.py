"""A million steps by default: `python -m tests.simulation.soak [--steps N] [--seed S] [--processes P]`."""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.simulation import simulate

_PART = 10_000


def main() -> None:
    """Simulate in parts, each with a seed of its own, and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    chosen = parser.parse_args()
    begin = time.monotonic()
    parts = [min(_PART, chosen.steps - done) for done in range(0, chosen.steps, _PART)]
    seeds = range(chosen.seed, chosen.seed + len(parts))
    total: Counter[str] = Counter()
    with ProcessPoolExecutor(chosen.processes) as pool:
        for outcomes in pool.map(simulate, seeds, parts):
            total += outcomes
            print(f"\r{total['steps']:,} steps in {time.monotonic() - begin:.0f} s", end="", flush=True)
    print("\nno law was violated:", ", ".join(f"{name} {count:,}" for name, count in sorted(total.items())))


if __name__ == "__main__":
    main()
