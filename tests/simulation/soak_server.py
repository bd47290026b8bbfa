"""Many requests of mixed length to a real server, some left by their client at a random moment."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil

from tests.served import MODEL, RunningServer, read_metrics

__all__ = ["Soak", "resident_bytes", "wait_until_idle"]

_TOKEN_IDS = range(300, 20_000)
_PATIENCE_S = 120.0
_FIRST_GUESS_S = 0.1


@dataclass
class Soak:
    """A client of one server. `outcomes` counts how its requests ended: done, refused or left.

    Clients that leave do so within the time that answers usually take, `usual_s`.
    `num_tokens` are those of the answers that were done.
    """

    server: RunningServer
    choose: random.Random
    share_left: float = 0.2
    outcomes: Counter[str] = field(default_factory=Counter)
    num_tokens: int = 0
    usual_s: float = _FIRST_GUESS_S

    def run(self, num_requests: int, at_once: int = 24) -> float:
        """So many requests, `at_once` open at a time; returns the seconds they took."""
        begun = time.monotonic()
        asyncio.run(self._closed_loop(num_requests, at_once))
        return time.monotonic() - begun

    def run_at(self, requests_per_s: float, seconds: float, num_samples: int) -> list[int]:
        """Requests that arrive at random at this rate; returns the server's resident bytes over time."""
        return asyncio.run(self._open_loop(requests_per_s, seconds, num_samples))

    async def _closed_loop(self, num_requests: int, at_once: int) -> None:
        async with self._client() as client, asyncio.TaskGroup() as group:
            vacancies = asyncio.Semaphore(at_once)
            for _ in range(num_requests):
                await vacancies.acquire()
                task = group.create_task(self._ask(client))
                task.add_done_callback(lambda _: vacancies.release())

    async def _open_loop(self, requests_per_s: float, seconds: float, num_samples: int) -> list[int]:
        samples: list[int] = []
        begun = arrival = time.monotonic()
        async with self._client() as client, asyncio.TaskGroup() as group:
            while (now := time.monotonic()) < begun + seconds:
                if now >= begun + len(samples) * seconds / num_samples:
                    samples.append(resident_bytes(self.server))
                if now >= arrival:
                    arrival += self.choose.expovariate(requests_per_s)
                    group.create_task(self._ask(client))
                await asyncio.sleep(min(0.05, max(0.0, arrival - now)))
        return [*samples, resident_bytes(self.server)]

    def _client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        return httpx.AsyncClient(base_url=self.server.url, timeout=_PATIENCE_S, limits=limits)

    async def _ask(self, client: httpx.AsyncClient) -> None:
        body = self._body()
        leaves = self.choose.random() < self.share_left
        patience = self.choose.uniform(0, self.usual_s) if leaves else _PATIENCE_S
        begun = time.monotonic()
        try:
            async with asyncio.timeout(patience):
                outcome = await _answer(client, body)
        except TimeoutError:
            assert leaves, "a request was never answered"
            outcome = "left"
        if outcome == "done":
            self.num_tokens += body["max_tokens"]
            self.usual_s += 0.05 * (time.monotonic() - begun - self.usual_s)
        self.outcomes[outcome] += 1

    def _body(self) -> dict[str, Any]:
        long = self.choose.random() < 0.2
        prompt = self.choose.choices(_TOKEN_IDS, k=self.choose.randint(1, 300 if long else 60))
        return {
            "model": MODEL,
            "prompt": prompt,
            "max_tokens": self.choose.randint(1, 120 if long else 12),
            "ignore_eos": True,
            "stream": self.choose.random() < 0.7,
            "priority": self.choose.choice([0, 0, 0, 5]),
            "seed": self.choose.randint(0, 9),
        }


async def _answer(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
    """How a request ends that the client does not leave: done or refused; whatever else is a failure."""
    async with client.stream("POST", "/v1/completions", json=body) as response:
        text = (await response.aread()).decode()
    if response.status_code == 429:
        return "refused"
    assert response.status_code == 200, text
    if body["stream"]:
        *events, done = [event for event in text.split("\n\n") if event.startswith("data: ")]
        assert done == "data: [DONE]", text
        answer = json.loads(events[-1].removeprefix("data: "))
    else:
        answer = json.loads(text)
        assert answer["usage"]["completion_tokens"] == body["max_tokens"]
    assert answer["choices"][0]["finish_reason"] == "length", text
    return "done"


def resident_bytes(server: RunningServer) -> int:
    """What the server's process holds in memory now."""
    return int(psutil.Process(server.pid).memory_info().rss)


def wait_until_idle(server: RunningServer, gauges: Sequence[str]) -> dict[str, float]:
    """The metrics once these gauges are 0: at most some seconds after the last client has left."""
    give_up = time.monotonic() + 20
    while True:
        metrics = read_metrics(server.url)
        if not any(metrics[gauge] for gauge in gauges):
            return metrics
        assert time.monotonic() < give_up, {gauge: metrics[gauge] for gauge in gauges}
        time.sleep(0.05)
