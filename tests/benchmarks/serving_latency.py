"""What one stream and the control plane feel of other people's long prompts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from gristmill.runtime.loadtest.client import CompletionClient
from gristmill.runtime.loadtest.prompts import PromptMaker, Segment
from gristmill.runtime.loadtest.records import Record
from gristmill.runtime.loadtest.session import LoadTest
from tests.benchmarks.serving_bench import Bench
from tests.benchmarks.serving_systems import WINDOW, Server, llama_server, vllm_server

__all__ = ["control_plane", "interference"]

TARGET_MS = 50.0
LONG_PROMPTS, LONG_TOKENS = 4, 4000
CONTROL_MS = 50.0
_CONTROL_PATHS = ("/health", "/ready", "/metrics")
_CONTROL_SETTINGS: Mapping[str, Sequence[object]] = {
    "default": (),
    "one step": ("--max-num-batched-tokens", 4096, "--itl-target", 600_000, "--stall", 600),
}
_STREAM_TOKENS = 1500
_LEAD_SECONDS = 1.0
_POLL_SECONDS = 0.02


def interference(bench: Bench) -> None:
    """One stream decodes while 4 prompts of 4,000 tokens arrive: its worst gap between two pieces of text."""
    bench.title("interference: worst gap of a stream", "before ms", "during ms", "prompts read s")
    systems: list[tuple[str, AbstractContextManager[Server]]] = [
        ("gristmill", bench.own_server("--itl-target", TARGET_MS))
    ]
    if not bench.alone:
        systems += [("llama-server", llama_server(8, WINDOW)), ("vLLM", vllm_server(8))]
    for name, started in systems:
        with started as server:
            before, during, seconds = asyncio.run(_disturb(server.url, 1 if bench.quick else LONG_PROMPTS))
        bench.line(name, f"{before:,.1f}", f"{during:,.1f}", f"{seconds:.1f}")
        if name == "gristmill":
            ours = during
            bench.keep(
                "interference: worst gap",
                ours,
                "ms",
                peer="--itl-target",
                peer_value=TARGET_MS,
                limit=2.0,
                at_most=True,
            )
        else:
            bench.keep("interference: worst gap", ours, "ms", peer=name, peer_value=during)


def control_plane(bench: Bench) -> None:
    """Its paths asked every 20 ms while a long prompt is read, by default and in one step of seconds."""
    bench.title("control plane during a 4,000-token prompt", "p50 ms", "max ms", "answers")
    for setting, options in _CONTROL_SETTINGS.items():
        with bench.own_server(*options) as server:
            times = asyncio.run(_poll_during_prompt(server.url))
        _keep_control(bench, setting, times)


def _keep_control(bench: Bench, setting: str, times: Mapping[str, list[float]]) -> None:
    for path, values in times.items():
        values.sort()
        worst = values[-1]
        bench.line(f"{path}, {setting}", f"{values[len(values) // 2]:.1f}", f"{worst:.1f}", str(len(values)))
        bench.keep(
            f"control plane: {path}, {setting}",
            worst,
            "ms",
            peer="limit",
            peer_value=CONTROL_MS,
            limit=1.0,
            at_most=True,
        )


async def _disturb(url: str, prompts: int) -> tuple[float, float, float]:
    """Worst gaps in milliseconds before and while the prompts are read, and how long that took."""
    client, maker = await LoadTest(url).connect()
    await client.complete(maker.make([Segment("warm-up", 600)]), 8)
    streaming = asyncio.create_task(client.complete(maker.make([Segment("stream", 64)]), _STREAM_TOKENS))
    await asyncio.sleep(_LEAD_SECONDS)
    arrived = time.perf_counter()
    await asyncio.gather(*(_long_prompt(client, maker, index) for index in range(prompts)))
    read = time.perf_counter()
    stream = _succeeded(await streaming)
    client.close()
    ends = _piece_times(stream)
    before = [gap for gap, end in zip(stream.gaps, ends, strict=True) if end < arrived]
    during = [gap for gap, end in zip(stream.gaps, ends, strict=True) if end >= arrived and end - gap <= read]
    if not before or not during or stream.last < read:
        raise SystemExit("the stream ended before the long prompts were read")
    return 1000 * max(before), 1000 * max(during), read - arrived


async def _poll_during_prompt(url: str) -> dict[str, list[float]]:
    client, maker = await LoadTest(url).connect()
    times: dict[str, list[float]] = {path: [] for path in _CONTROL_PATHS}
    reading = asyncio.create_task(_long_prompt(client, maker, 0))
    while not reading.done():
        for path, values in times.items():
            start = time.perf_counter()
            status, _ = await client.ask("GET", path)
            values.append(1000 * (time.perf_counter() - start))
            if status != 200:
                raise SystemExit(f"{path} answered {status}")
        await asyncio.sleep(_POLL_SECONDS)
    await reading
    client.close()
    return times


async def _long_prompt(client: CompletionClient, maker: PromptMaker, index: int) -> Record:
    return _succeeded(await client.complete(maker.make([Segment(f"long {index}", LONG_TOKENS)]), 1))


def _piece_times(record: Record) -> list[float]:
    """When each gap ended."""
    times, now = [], record.first or 0.0
    for gap in record.gaps:
        now += gap
        times.append(now)
    return times


def _succeeded(record: Record) -> Record:
    if record.error is not None:
        raise SystemExit(f"a request failed: {record.error}: {record.detail}")
    return record
