"""Hostile programs: each tries something that must not work, and says so by coming to its end."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from gristmill.pipeline.validate.tasks.sandbox import Limits, run_program, run_programs
from tests.sandboxed import skip_without_sandbox

skip_without_sandbox()


def _refused(attempt: str) -> str:
    """A program that passes only if `attempt` raises."""
    body = "\n    ".join(attempt.splitlines())
    return f"import os, socket, sys\ntry:\n    {body}\nexcept Exception:\n    pass\nelse:\n    sys.exit(1)"


def test_a_good_program_passes() -> None:
    assert run_program("assert sorted([2, 1]) == [1, 2]") == "passed"


def test_the_standard_library_is_there() -> None:
    assert run_program("import collections, datetime, heapq, itertools, json, math, random, re") == "passed"


@pytest.mark.parametrize(
    "program",
    [
        "assert 1 == 2",
        "1 +",
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "import os; os.kill(os.getpid(), 9)",
        "print('\\ud800')",
        "\0",
    ],
)
def test_a_program_that_does_not_reach_its_end_fails(program: str) -> None:
    assert run_program(program) == "failed"


def test_an_endless_loop_is_ended() -> None:
    assert run_program("while True: pass", Limits(wall_s=1.0)) == "timed out"


def test_one_that_sleeps_is_ended_with_all_that_it_started() -> None:
    mark = "123457.25"
    program = f"import os, time\nos.fork()\nos.setsid() if os.getpid() > 2 else None\ntime.sleep({mark})"
    assert run_program(program, Limits(wall_s=1.0)) == "timed out"
    left, give_up = _running("program.py"), time.monotonic() + 20
    while left & _running("program.py"):
        assert time.monotonic() < give_up, "a process is left"
        time.sleep(0.05)


def _running(argument: str) -> set[str]:
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines() if line.endswith(f" -B {argument}")}


def test_memory_is_bounded() -> None:
    assert run_program("x = bytearray(1 << 30)") == "failed"
    assert run_program("x = bytearray(64 << 20)") == "passed"


def test_a_fork_bomb_stops_at_the_limit() -> None:
    bomb = "import os, time\nn = 0\ntry:\n    while True:\n"
    bomb += "        if os.fork() == 0:\n            time.sleep(60)\n        n += 1\n"
    bomb += "except BlockingIOError:\n    assert n < 4"
    assert run_program(bomb) == "passed"


def test_cpu_time_is_bounded() -> None:
    assert run_program("while True: pass", Limits(wall_s=30.0, cpu_s=1)) == "failed"


def test_files_are_bounded() -> None:
    assert run_program(_refused("open('big', 'wb').write(bytes(1 << 23))")) == "passed"
    fill = "for n in range(40):\n    open(str(n), 'wb').write(bytes(1 << 20))"
    assert run_program(_refused(fill)) == "passed"


def test_nothing_outside_can_be_read_or_written(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the key")
    tmp_path.chmod(0o777)
    attempts = [
        f"open({str(secret)!r}).read()",
        f"open({str(tmp_path / 'new')!r}, 'w')",
        "open('/etc/passwd').read()",
        "open('/proc/1/environ').read()",
        "open('/usr/new', 'w')",
        "os.chroot('/')",
        "os.mkdir('/usr/lib/new')",
        "os.setuid(0)",
    ]
    assert run_programs([_refused(attempt) for attempt in attempts]) == ["passed"] * len(attempts)
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_the_network_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        accepted: list[object] = []
        server.settimeout(2.0)

        def accept() -> None:
            with suppress(TimeoutError):
                connection, _ = server.accept()
                accepted.append(connection)
                connection.close()

        listener = threading.Thread(target=accept)
        listener.start()
        attempt = f"socket.create_connection(('127.0.0.1', {port}), 2)"
        assert run_program(_refused(attempt)) == "passed"
        listener.join()
    assert not accepted


def test_the_environment_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRISTMILL_API_KEY", "secret")
    assert run_program("import os\nassert set(os.environ) <= {'LC_CTYPE'}, os.environ") == "passed"


def test_no_file_but_the_standard_ones_is_open() -> None:
    program = "import os\nfound = []\nfor n in range(3, 60):\n    try:\n        os.fstat(n)\n"
    program += "        found.append(n)\n    except OSError:\n        pass\nassert len(found) <= 1, found"
    assert run_program(program) == "passed"


def test_no_new_namespace_can_be_made() -> None:
    attempt = "import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == 0"
    assert run_program(_refused(attempt)) == "passed"


def test_nothing_is_left_of_a_run() -> None:
    assert run_program("open('left', 'w').write('x')") == "passed"
    assert run_program("import os\nassert os.listdir('.') == ['program.py']") == "passed"
