"""Real servers, and the programs of clients."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.clients.environments import client_environment
from tests.command_line import CommandLine
from tests.served import RunningServer, serving

ADMIN_TOKEN = "an-admin-token-for-tests"
TIMEOUT_S = 240

RunClient = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def server(built: CommandLine) -> Iterator[RunningServer]:
    """A server that is open to all."""
    with serving(built, "--admin-token", ADMIN_TOKEN) as running:
        yield running


@pytest.fixture(scope="session")
def keyed_server(built: CommandLine) -> Iterator[RunningServer]:
    """A server that asks for a key and lets each have one request open."""
    with serving(built, "--api-key", "team:a-key-for-tests", "--max-open-per-key", "1") as running:
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
