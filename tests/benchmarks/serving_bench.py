"""What the parts of the serving benchmark share: what is run, measuring a load, printing, keeping rows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gristmill.runtime.loadtest.session import LoadTest
from gristmill.runtime.loadtest.workload import Workload
from tests.benchmarks.serving_systems import Server, own_server
from tests.benchmarks.table import result_row, table_line

__all__ = ["LOAD_COLUMNS", "Bench", "Run"]

Run = Mapping[str, Any]

_FIRST, _WIDTH = 44, 13


@dataclass(slots=True)
class Bench:
    """One run of the benchmark on the artifact `ref` of a store; `rows` are its results so far."""

    ref: str
    store: Path
    quick: bool
    alone: bool
    command: str
    rows: list[dict[str, Any]] = field(default_factory=list)

    def own_server(self, *options: object) -> AbstractContextManager[Server]:
        """Ours, with these options of `gristmill serve`."""
        return own_server(self.ref, self.store, *options)

    def measure(self, server: Server, workload: Workload, *, warmup: int = 2, token_ids: bool = False) -> Run:
        """One load on a server; every request must succeed."""
        (run,) = LoadTest(server.url, warmup=warmup, token_ids=token_ids).run([workload])
        if run["errors"]:
            raise SystemExit(f"{workload.name} at {server.url} failed: {run['first_errors']}")
        return run

    def title(self, text: str, *columns: str) -> None:
        """Begin a table."""
        print("\n" + table_line((text, *columns), _FIRST, _WIDTH), flush=True)

    def line(self, name: str, *cells: str) -> None:
        """One line of a table."""
        print(table_line((name, *cells), _FIRST, _WIDTH), flush=True)

    def load_line(self, name: str, run: Run, resident: int | None = None) -> None:
        """A load under `LOAD_COLUMNS`."""
        memory = "" if resident is None else f"{resident / 1e6:,.0f}"
        latencies = (run["ttft_ms"]["p50"], run["tpot_ms"]["p50"], run["itl_ms"]["max"])
        told = ["-" if value is None else f"{value:,.1f}" for value in latencies]
        client = f"{run['client_cpu_share']:.0%}"
        self.line(name, f"{run['output_tokens_per_s']:,.0f}", *told, memory, client)

    def keep(
        self,
        metric: str,
        ours: float,
        unit: str,
        *,
        peer: str = "",
        peer_value: float | None = None,
        limit: float | None = None,
        at_most: bool = False,
    ) -> None:
        """Record a result, and say whether its wanted ratio is met, the least or (`at_most`) the most."""
        self.rows.append(result_row(metric, ours, peer, peer_value, unit, self.command, limit))
        if limit is not None and peer_value:
            ratio = ours / peer_value
            met = ratio <= limit if at_most else ratio >= limit
            sign = "<=" if at_most else ">="
            told = "met" if met else "MISSED"
            self.line(f"{metric} / {peer}", f"{ratio:.2f}", f"{sign} {limit:g}", told)


LOAD_COLUMNS = ("out tok/s", "TTFT p50 ms", "TPOT p50 ms", "worst gap ms", "memory MB", "client CPU")
