"""What a row of the quality benchmark came to, as lines of the table and as rows of the JSON file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill.pipeline.validate.result import DataResult
from tests.benchmarks.quality_rows import Peer, Row
from tests.benchmarks.table import result_row, write_rows

__all__ = ["HEADER", "Measured", "keep_row", "table_rows"]

COMMAND = "make bench-quality"
HEADER = (
    *("", "KL wiki", "KL chat", "ppl wiki", "top-1 wiki", "top-1"),
    *("seconds", "CPU seconds", "bits", "peak MiB"),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """What one row came to; `independent` is the other script's result.

    `cpu_seconds` over all threads tells a slow row from a busy machine; `memory` is the largest resident
    size while the row was quantized, in bytes; `bits` are those stored for a quantized weight.
    """

    row: Row
    seconds: float
    cpu_seconds: float
    memory: int
    bits: float
    wiki: DataResult
    chat: DataResult
    independent: Mapping[str, float] | None


def table_rows(measured: Measured) -> list[tuple[str, ...]]:
    """Ours by both measures, the peer, and the ratios that have limits."""
    row, peer, other = measured.row, measured.row.peer, measured.independent
    wiki, chat = measured.wiki.metrics, measured.chat.metrics
    ours = (wiki.kl_mean, chat.kl_mean, wiki.perplexity, wiki.top1_agreement, _top1(measured))
    cost = (f"{measured.seconds:.1f}", f"{measured.cpu_seconds:.1f}")
    size = (f"{measured.bits:.3f}", f"{measured.memory / 2**20:.0f}")
    table = [(row.name, *_numbers(*ours), *cost, *size)]
    if other is not None:
        values = (other["kl_wiki"], other["kl_chat"], other["ppl"], None, other["top1"])
        table.append(("  independent measure", *_numbers(*values)))
    if peer is None:
        return table
    table.append(
        (
            f"  {peer.tool}",
            *_numbers(peer.kl_wiki, peer.kl_chat, peer.perplexity, None, peer.top1),
            f"{peer.seconds:.2f}" if peer.seconds < 1 else f"{peer.seconds:.0f}",
        )
    )
    kl, seconds = (
        _held_kl(measured) / row.held_kl(peer.kl_wiki, peer.kl_chat),
        measured.seconds / peer.seconds,
    )
    limits = ["" if limit is None else f"<= {limit:.2f}" for limit in (row.kl_limit, row.time_limit)]
    name = "  ratio over both" if row.over_both else "  ratio"
    table.append((name, f"{kl:.2f} {limits[0]}", "", "", "", "", f"{seconds:.2f} {limits[1]}"))
    return table


def keep_row(path: Path, measured: Measured) -> None:
    """Put the row's figures into the benchmark's file, in place of its earlier ones; other rows stay."""
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    others = [row for row in rows if not row["metric"].startswith(f"{measured.row.name}: ")]
    write_rows(path, [*others, *_json_rows(measured)])


def _held_kl(measured: Measured) -> float:
    """The KL that the row's limit is on, by the independent measure where it was taken."""
    wiki, chat = measured.wiki.metrics.kl_mean, measured.chat.metrics.kl_mean
    if (other := measured.independent) is not None:
        wiki, chat = other["kl_wiki"], other["kl_chat"]
    return measured.row.held_kl(wiki, chat)


def _top1(measured: Measured) -> float:
    wiki, chat = measured.wiki.metrics, measured.chat.metrics
    weighted = wiki.top1_agreement * wiki.positions + chat.top1_agreement * chat.positions
    return weighted / (wiki.positions + chat.positions)


def _numbers(*values: float | None) -> tuple[str, ...]:
    return tuple("" if value is None else f"{value:.2f}" if value > 2 else f"{value:.4f}" for value in values)


def _json_rows(measured: Measured) -> list[dict[str, Any]]:
    row, other = measured.row, measured.independent
    wiki, chat = measured.wiki.metrics, measured.chat.metrics
    peer = row.peer or Peer("", math.nan, math.nan, math.nan, math.nan, math.nan)

    def entry(
        metric: str, ours: float, value: float | None, unit: str, limit: float | None = None
    ) -> dict[str, Any]:
        known = None if row.peer is None else value
        return result_row(
            f"{row.name}: {metric}", ours, peer.tool, known, unit, COMMAND, limit if known else None
        )

    rows = [
        entry("KL wiki, own validation", wiki.kl_mean, peer.kl_wiki, "nats"),
        entry("KL chat, own validation", chat.kl_mean, peer.kl_chat, "nats"),
        entry("perplexity wiki, own validation", wiki.perplexity, peer.perplexity, ""),
        entry("top-1, own validation", _top1(measured), peer.top1, "share"),
        entry("chat tokens in 16-grams of calibration", measured.chat.overlap, None, "share"),
        entry("stored bits of a quantized weight", measured.bits, None, "bits"),
        entry("wall time", measured.seconds, peer.seconds, "s", row.time_limit),
        entry("CPU time", measured.cpu_seconds, None, "s"),
        entry("peak resident memory", measured.memory, None, "bytes"),
    ]
    text = "wiki and chat" if row.over_both else "wiki"
    measure = "own validation" if other is None else "independent measure"
    peer_kl = row.held_kl(peer.kl_wiki, peer.kl_chat)
    rows.append(entry(f"KL {text}, held, {measure}", _held_kl(measured), peer_kl, "nats", row.kl_limit))
    if other is not None:
        rows += [
            entry("KL wiki, independent measure", other["kl_wiki"], peer.kl_wiki, "nats"),
            entry("KL chat, independent measure", other["kl_chat"], peer.kl_chat, "nats"),
            entry("perplexity wiki, independent measure", other["ppl"], peer.perplexity, ""),
            entry("top-1, independent measure", other["top1"], peer.top1, "share"),
        ]
    return rows
