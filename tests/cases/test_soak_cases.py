"""Cases from the field on what a server loses over time: blocks, memory, requests, counts.

`make soak` runs them long: GRISTMILL_SOAK_REQUESTS requests, GRISTMILL_SOAK_MINUTES under load.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from statistics import mean

import pytest

from tests.command_line import CommandLine
from tests.served import RunningServer, serving
from tests.simulation.soak_server import Soak, resident_bytes, wait_until_idle

NUM_REQUESTS = int(os.environ.get("GRISTMILL_SOAK_REQUESTS", "500"))
SECONDS = 60 * float(os.environ.get("GRISTMILL_SOAK_MINUTES", "0.1"))
GAUGES = ("num_requests_running", "num_requests_waiting", "num_tokens_waiting", "kv_cache_usage_perc")
REASONS = ("stop", "length", "abort", "error")
MIB = 1 << 20
TIMEOUT_S = 600 + int(2 * SECONDS + NUM_REQUESTS)


@pytest.fixture(scope="module")
def server(built: CommandLine) -> Iterator[RunningServer]:
    """A server with so little cache and so short a queue that requests are preempted and refused."""
    options = ("--kv-cache-memory", "1MiB", "--max-num-seqs", 8, "--max-waiting", 12)
    with serving(built, *options) as running:
        Soak(running, random.Random(1)).run(100)  # what is allocated once, is now
        wait_until_idle(running, GAUGES)
        yield running


@pytest.mark.timeout(TIMEOUT_S)
def test_c18_requests_that_end_at_any_moment_leave_nothing_behind(server: RunningServer) -> None:
    before, begun_with = wait_until_idle(server, GAUGES), resident_bytes(server)
    soak = Soak(server, random.Random(2))
    soak.run(NUM_REQUESTS)
    after = wait_until_idle(server, GAUGES)
    assert soak.outcomes.total() == NUM_REQUESTS
    assert soak.outcomes["done"] > NUM_REQUESTS / 2
    assert soak.outcomes["left"] > NUM_REQUESTS / 20
    assert resident_bytes(server) < 1.05 * begun_with + 16 * MIB
    grown = {name: after[name] - before.get(name, 0) for name in after}
    ended = {reason: grown[f'request_success_total{{finished_reason="{reason}"}}'] for reason in REASONS}
    assert sum(ended.values()) == grown["request_accepted_total"]
    assert ended["stop"] == ended["error"] == 0
    assert soak.outcomes["done"] <= ended["length"] <= soak.outcomes["done"] + soak.outcomes["left"]
    assert grown["generation_tokens_total"] >= soak.num_tokens


@pytest.mark.timeout(TIMEOUT_S)
def test_c19_memory_is_flat_at_80_percent_load(server: RunningServer) -> None:
    probe = Soak(server, random.Random(3), share_left=0.0)
    seconds = probe.run(100, at_once=8)
    soak = Soak(server, random.Random(4), share_left=0.05)
    samples = soak.run_at(0.8 * 100 / seconds, SECONDS, num_samples=40)
    wait_until_idle(server, GAUGES)
    early, late = mean(samples[10:20]), mean(samples[-10:])
    assert late < 1.02 * early + 4 * MIB, [sample // MIB for sample in samples]
    assert soak.outcomes["done"] > 0
