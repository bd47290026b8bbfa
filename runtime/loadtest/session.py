"""One load test from the first question to the summaries of all its loads."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from gristmill.runtime.loadtest.client import CompletionClient
from gristmill.runtime.loadtest.http import parse_endpoint
from gristmill.runtime.loadtest.metrics import ServiceLevel, summarize
from gristmill.runtime.loadtest.probe import probe_extras, probe_model, probe_prompts
from gristmill.runtime.loadtest.prompts import PromptMaker
from gristmill.runtime.loadtest.replay import Measurement, replay, warm_up
from gristmill.runtime.loadtest.workload import Workload

__all__ = ["LoadTest", "Progress", "Silent"]


class Progress(Protocol):
    """Is told how far the test is."""

    def stage(self, name: str, total: int, unit: str) -> None:
        """A load begins; `total` is 0 if it has no known end."""

    def advance(self, steps: int = 1) -> None:
        """Requests have finished."""


class Silent:
    """Progress that nobody watches."""

    def stage(self, name: str, total: int, unit: str) -> None:
        """Say nothing."""

    def advance(self, steps: int = 1) -> None:
        """Say nothing."""


@dataclass(frozen=True, slots=True)
class LoadTest:
    """A server and how it is asked.

    model       None takes the only one that the server has
    token_ids   prompts are token ids, not words
    warmup      requests before each load; None for as many as run at once, one in an open loop
    """

    url: str
    model: str | None = None
    api_key: str | None = None
    token_ids: bool = False
    timeout: float = 600.0
    warmup: int | None = None
    level: ServiceLevel = field(default_factory=ServiceLevel)
    price_per_hour: float | None = None

    def run(self, workloads: Sequence[Workload], progress: Progress | None = None) -> list[dict[str, Any]]:
        """The summary of each load; an interrupt ends the last one early, marked `interrupted`.

        Call it from the main thread. Raises InputError for what the server refuses, OutsideError if
        it can't be reached.
        """
        measured = asyncio.run(self._measure(workloads, progress or Silent()))
        return [summarize(one, self.level, self.price_per_hour) for one in measured]

    async def connect(self) -> tuple[CompletionClient, PromptMaker]:
        """A client and what writes its prompts, after asking the server what it can do. Raises as `run`."""
        client = CompletionClient(parse_endpoint(self.url), api_key=self.api_key, timeout=self.timeout)
        try:
            client.model = await probe_model(client, self.model)
            client.extras = await probe_extras(client)
            return client, await probe_prompts(client, token_ids=self.token_ids)
        except BaseException:
            client.close()
            raise

    async def _measure(self, workloads: Sequence[Workload], progress: Progress) -> list[Measurement]:
        client, maker = await self.connect()
        measured: list[Measurement] = []
        try:
            for workload in workloads:
                warmup = (workload.concurrency or 1) if self.warmup is None else self.warmup
                await warm_up(client, maker, workload, warmup)
                progress.stage(workload.name, workload.num_requests or 0, "requests")
                with _interrupt_event() as stop:
                    measured.append(
                        await replay(client, maker, workload, stop=stop, on_finished=progress.advance)
                    )
                if measured[-1].interrupted:
                    break
        finally:
            client.close()
        return measured


@contextmanager
def _interrupt_event() -> Iterator[asyncio.Event]:
    """An event that Ctrl-C sets instead of ending the program."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    try:
        yield stop
    finally:
        loop.remove_signal_handler(signal.SIGINT)
