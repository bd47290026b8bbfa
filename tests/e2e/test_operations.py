"""A served artifact as a process: what it says of itself, its log, its keys, its restart by name."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gristmill.runtime.machine import cpu_limits

THREADS = cpu_limits().effective + 1
KEY, TOKEN = "k3y-of-the-team", "t0ken-of-the-admin"


class Served:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    def ask(self, path: str, body: Any = None, secret: str = KEY) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {secret}", "X-Request-Id": "asked"}
        request = urllib.request.Request(f"{self.url}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def served(built) -> Iterator[Served]:
    """The tiny model's native engine, asked once, reloaded, asked again."""
    command = replace(built, environment={"GRISTMILL_API_KEY": f"team:{KEY}", "GRISTMILL_ADMIN_TOKEN": TOKEN})
    process = command.start(
        "serve", "tiny", "--port", 0, "--json", "--log-format", "json", "--threads", THREADS
    )
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    yield Served(process, json.loads(line)["url"])
    process.kill()
    process.communicate()


def test_info_names_instruction_set_and_kernels(served: Served) -> None:
    (model,) = served.ask("/info")["models"]
    assert model["engine"]["executor"] == "native-x86"
    assert model["engine"]["kernels"]
    assert model["memory"]["num_blocks"] > 0
    assert model["digest"].startswith("sha256:")


def test_a_model_is_loaded_again_by_its_name(served: Served) -> None:
    question = {"model": "tiny", "prompt": "Once", "max_tokens": 4, "temperature": 0}
    before = served.ask("/v1/completions", question)["choices"][0]["text"]
    reloaded = served.ask("/admin/reload", {"model": "tiny"}, TOKEN)
    assert reloaded["digest"] == reloaded["replaced"]
    assert served.ask("/v1/completions", question)["choices"][0]["text"] == before


def test_without_its_key_nothing_is_answered(served: Served) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        served.ask("/v1/models", secret="wrong")


def test_no_command_line_shows_a_key(served: Served) -> None:
    with open(f"/proc/{served.process.pid}/cmdline", encoding="utf-8") as file:
        shown = file.read()
    assert KEY not in shown
    assert TOKEN not in shown


def test_every_line_of_the_log_is_json_and_none_holds_a_secret(served: Served) -> None:
    served.process.send_signal(signal.SIGTERM)
    _, err = served.process.communicate(timeout=60)
    assert served.process.returncode == 0, err
    lines = [json.loads(line) for line in err.splitlines()]
    assert any(line.get("request_id") == "asked" and line.get("tenant") == "team" for line in lines)
    said = [line["message"] for line in lines]
    assert any("KV cache" in message for message in said)
    assert any(f"{THREADS} threads for" in message for message in said)
    assert any("finishing running requests" in message for message in said)
    assert not any(secret in err for secret in (KEY, TOKEN, "Once"))


def test_a_port_that_is_taken_is_one_line_and_3(built, served_port: int) -> None:
    done = built.run("serve", "tiny", "--port", served_port)
    assert (done.returncode, done.stdout) == (3, "")
    assert [
        line for line in done.stderr.splitlines() if line.startswith("error: ")
    ] == done.stderr.splitlines()


@pytest.fixture
def served_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]
