"""The server as a process of its own with a real model: ready line, drain, exit codes, addresses."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import pytest

from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.errors import InputError, ListenError
from gristmill.runtime.server.listen import bind
from gristmill.runtime.server.run import run_server
from gristmill.runtime.server.settings import ServerSettings

SCRIPT = """
import sys
from pathlib import Path
from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.server.run import run_server
from gristmill.runtime.server.settings import ServerSettings
from gristmill.runtime.settings import EngineSettings
folders = [EngineFolder(name, "reference", Path(sys.argv[1]), Path(sys.argv[1])) for name in sys.argv[2:]]
settings = EngineSettings(max_num_seqs=8)
run_server(folders, settings, ServerSettings(port=0), json_ready="twin" not in sys.argv)
"""


class ServerProcess:
    def __init__(self, model: Path, *names: str) -> None:
        command = [sys.executable, "-c", SCRIPT, str(model), *names]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        )
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline()
        match = re.search(r"http://[\w.:]+", self.ready)
        assert match, self.process.communicate()[1]
        self.url = match[0]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Exit code, the rest of stdout, stderr."""
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


@pytest.fixture
def start(tiny_llama: Path) -> Iterator[Callable[..., ServerProcess]]:
    servers: list[ServerProcess] = []

    def start(*names: str) -> ServerProcess:
        servers.append(ServerProcess(tiny_llama, *names))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
            server.process.communicate()


def test_a_real_model_is_served_and_a_signal_lets_it_finish(start: Callable[..., ServerProcess]) -> None:
    server = start("tiny", "twin")
    assert re.fullmatch(r"serving tiny, twin at http://127\.0\.0\.1:\d+ \(ready\)\n", server.ready)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hello"}], temperature=0, max_tokens=5
        )
        assert answer.usage is not None
        assert answer.usage.completion_tokens <= 5
        endless = {"ignore_eos": True}
        stream = client.completions.create(
            model="twin", prompt="x", max_tokens=60, temperature=0, stream=True, extra_body=endless
        )
        next(stream)
        server.signal(signal.SIGTERM)
        chunks = list(stream)
    assert chunks[-1].choices[0].finish_reason == "length"
    code, out, err = server.end()
    assert (code, out) == (0, "")
    assert "KV cache" in err
    assert "finishing running requests" in err


def test_a_second_signal_ends_the_process_at_once(start: Callable[..., ServerProcess]) -> None:
    server = start("tiny")
    assert json.loads(server.ready) == {"status": "ready", "models": ["tiny"], "url": server.url}
    body = {"model": "tiny", "prompt": "x", "max_tokens": 500, "ignore_eos": True, "stream": True, "n": 8}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        server.signal(signal.SIGINT)
        time.sleep(0.3)
        server.signal(signal.SIGINT)
        code, _, err = server.end()
    assert code == 130
    assert "stopped at once" in err


@pytest.fixture
def folder(tmp_path: Path) -> EngineFolder:
    return EngineFolder("m", "reference", tmp_path, tmp_path)


def test_a_busy_port_is_said_before_anything_is_loaded(folder: EngineFolder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            ListenError, match=f"can't listen at 127.0.0.1:{port}; found Address already in use"
        ):
            run_server([folder], server=ServerSettings(port=port))


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_number_that_is_no_port_is_the_users_error(folder: EngineFolder, port: int) -> None:
    with pytest.raises(InputError, match="expected 0 to 65535"):
        run_server([folder], server=ServerSettings(port=port))


@pytest.mark.parametrize("host", ["no-such-host.invalid", "203.0.113.1"])
def test_a_host_that_is_not_here_is_said(folder: EngineFolder, host: str) -> None:
    with pytest.raises(ListenError, match=host):
        run_server([folder], server=ServerSettings(host=host))


def test_port_0_takes_a_free_one() -> None:
    with bind("127.0.0.1", 0) as first, bind("127.0.0.1", 0) as second:
        assert first.getsockname()[1] != second.getsockname()[1] > 0


def test_one_name_for_two_models_is_refused(folder: EngineFolder) -> None:
    with pytest.raises(InputError, match="each name once"):
        run_server([folder, folder], server=ServerSettings(port=0))


def test_no_model_is_refused() -> None:
    with pytest.raises(InputError, match="found none"):
        run_server([], server=ServerSettings(port=0))
