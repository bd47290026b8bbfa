"""Run programs that a model has written, where they can do no harm.

A program runs in namespaces of its own (network, mount, process, IPC, host
name, and user where we are not root): there is no network, no file but the interpreter's, read-only, and
a small file system in memory that goes with it, no process but its own, an
empty environment, and no privilege. Limits hold its memory, time, files and
processes. All of that is the kernel's; nothing rests on the program's goodwill.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from gristmill.runtime.errors import UnsupportedError

__all__ = ["Limits", "Outcome", "require_sandbox", "run_program", "run_programs"]

Outcome = Literal["passed", "failed", "timed out"]

_LAUNCHER = Path(__file__).with_name("sandbox_launcher.py")
_LOCKED_OUT = b"locked out: "
_MOST_RESULT = 4096


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may take; memory and CPU time are those of each of its processes."""

    wall_s: float = 10.0
    cpu_s: int = 5
    memory_bytes: int = 512 << 20
    disk_bytes: int = 16 << 20
    file_bytes: int = 4 << 20
    files: int = 64
    processes: int = 4


_DEFAULT = Limits()


def require_sandbox(task: str) -> None:
    """Raise UnsupportedError, naming what is missing, where programs can't be locked in."""
    try:
        run_program("", _DEFAULT)
    except OSError as error:
        raise UnsupportedError(
            f"task {task} runs code that the model writes, and this machine can't lock it in",
            found=str(error),
            expected="Linux with user namespaces",
            hint="allow them (kernel.unprivileged_userns_clone, user.max_user_namespaces), or leave it out",
        ) from error


def run_programs(programs: Sequence[str], limits: Limits = _DEFAULT) -> list[Outcome]:
    """`run_program` for each, as many at once as there are cores."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(lambda program: run_program(program, limits), programs))


def run_program(program: str, limits: Limits = _DEFAULT) -> Outcome:
    """Whether a Python program comes to its end; one that exits earlier has failed, whatever its code.

    Raises OSError where it can't be locked in; it has not run then.
    """
    reached = secrets.token_hex(16)
    read, write = os.pipe()
    ending = f"\nimport os as _os\n_os.write({write}, b'{reached}')\n"
    command = [sys.executable, "-I", "-S", str(_LAUNCHER), str(write), json.dumps(asdict(limits))]
    silent = subprocess.DEVNULL
    try:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=silent, stderr=silent, env={}, pass_fds=(write,)
            )
        finally:
            os.close(write)
        in_time = _finish(process, (program + ending).encode("utf-8", "replace"), limits.wall_s)
        os.set_blocking(read, False)
        result = _read(read)
    finally:
        os.close(read)
    if result.startswith(_LOCKED_OUT):
        raise OSError(result.removeprefix(_LOCKED_OUT).decode())
    if result == reached.encode():
        return "passed"
    return "failed" if in_time else "timed out"


def _finish(process: subprocess.Popen[bytes], program: bytes, wall_s: float) -> bool:
    """Feed the program and wait; False if it had to be killed, and all that it started with it."""
    try:
        process.communicate(program, timeout=wall_s)
        return True
    except subprocess.TimeoutExpired:
        return False
    finally:
        process.kill()
        process.wait()
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _MOST_RESULT)
    except BlockingIOError:  # a process that was killed a moment ago still holds the other end
        return b""
