"""A server of our own as a child process, from its ready line to its end."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from gristmill.runtime.errors import OutsideError

__all__ = ["ServerProcess", "started_server"]

_END_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """Where it listens, and its process."""

    url: str
    process_id: int

    def resident_bytes(self) -> int:
        """Memory that it holds now; 0 if it has ended."""
        try:
            return int(psutil.Process(self.process_id).memory_info().rss)
        except psutil.NoSuchProcess:
            return 0


@contextmanager
def started_server(command: Sequence[str]) -> Iterator[ServerProcess]:
    """Run `command`, which prints a line of JSON with its `url` when it is ready, and end it afterwards.

    Its errors go where ours go. Raises OutsideError if it ends before it is ready.
    """
    # In a session of its own: an interrupt is for the client, which ends the server when it is done.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield ServerProcess(_ready_url(process), process.pid)
    finally:
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _ready_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    try:
        return str(json.loads(line)["url"])
    except (ValueError, KeyError, TypeError) as error:
        found = f"exit code {process.wait()}" if not line else line.strip()
        raise OutsideError("the server did not become ready", found=found) from error
