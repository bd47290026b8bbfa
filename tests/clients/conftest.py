"""Real servers, each a process of its own with the tiny model on the native engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gristmill.facade import engine_folder
from tests.clients.environments import client_environment
from tests.command_line import CommandLine

ADMIN_TOKEN = "an-admin-token-for-tests"
TIMEOUT_S = 240

RunClient = Callable[..., subprocess.CompletedProcess[str]]


@dataclass(frozen=True)
class RunningServer:
    """Its address without a path, and the folder of the model's tokenizer."""

    url: str
    tokenizer: Path


@contextmanager
def _serving(built: CommandLine, *options: str) -> Iterator[RunningServer]:
    process = built.start("serve", "tiny", "--port", 0, "--json", "--log-level", "warning", *options)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        checkpoint = engine_folder("tiny", store=built.store).checkpoint
        yield RunningServer(json.loads(line)["url"], checkpoint)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0, log
        assert "Traceback" not in log
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def server(built: CommandLine) -> Iterator[RunningServer]:
    """A server that is open to all; it must end well, without having logged a traceback."""
    with _serving(built, "--admin-token", ADMIN_TOKEN) as running:
        yield running


@pytest.fixture(scope="session")
def keyed_server(built: CommandLine) -> Iterator[RunningServer]:
    """A server that asks for a key and lets each have one request open."""
    with _serving(built, "--api-key", "team:a-key-for-tests", "--max-open-per-key", "1") as running:
        yield running


@pytest.fixture(scope="session")
def run_client(tmp_path_factory: pytest.TempPathFactory) -> RunClient:
    """Run a program of a client's own environment, which must succeed; it finds nothing of its user's."""

    def run(client: str, program: str, arguments: Sequence[object]) -> subprocess.CompletedProcess[str]:
        folder = tmp_path_factory.mktemp(client)
        done = subprocess.run(
            [str(client_environment(client) / program), *map(str, arguments)],
            env={**os.environ, "HOME": str(folder), "HF_HOME": str(folder / "hf")},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done

    return run
