"""A server of our own as a child process, from its ready line to its end."""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType

import psutil

from gristmill.runtime.errors import OutsideError

__all__ = ["ServerProcess", "started_server"]

_END_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1


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

    Its errors go where ours go. Call it from the main thread: a SIGTERM to us ends the server too, and on
    Linux whatever else ends us. Raises OutsideError if it ends before it is ready.
    """
    before = signal.signal(signal.SIGTERM, _leave)
    # In a session of its own: an interrupt is for the client, which ends the server when it is done.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_end_with_parent(),
    )
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
        signal.signal(signal.SIGTERM, before)


def _end_with_parent() -> Callable[[], object] | None:
    """What a child calls to be sent a SIGTERM when its parent is no more: nothing outlives a SIGKILL."""
    if sys.platform != "linux":
        return None
    return partial(ctypes.CDLL(None).prctl, _PR_SET_PDEATHSIG, signal.SIGTERM)


def _leave(number: int, frame: FrameType | None) -> None:
    """End this process by way of its `finally` clauses."""
    raise SystemExit(128 + number)


def _ready_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    try:
        return str(json.loads(line)["url"])
    except (ValueError, KeyError, TypeError) as error:
        found = f"exit code {process.wait()}" if not line else line.strip()
        raise OutsideError("the server did not become ready", found=found) from error
