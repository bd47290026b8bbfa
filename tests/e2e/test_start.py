"""What starts when an artifact is served: as little as serving needs, and a report of time at the end."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

# Runs a command in a process of its own, then lists what it has imported.
SCRIPT = """
import json, sys
from gristmill.cli.app import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    print(json.dumps({"code": ended.code, "modules": sorted(sys.modules)}))
"""
NOT_FOR_SERVING = {
    "torch",
    "transformers",
    "huggingface_hub",
    "rich",
    "yaml",
    "gguf",
    "gristmill.pipeline",
    "gristmill.calibration",
    "gristmill.recipes",
}
NOT_OFFLINE = NOT_FOR_SERVING | {"starlette", "uvicorn", "prometheus_client"}


def started(built, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, *map(str, arguments), "--store", str(built.store)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> set[str]:
    """The modules of a command that has done its work."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    report = json.loads(out.splitlines()[-1])
    assert report["code"] == 0, err
    return set(report["modules"])


def complete(url: str) -> str:
    body = json.dumps({"model": "tiny", "prompt": "Once", "max_tokens": 4}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["text"])


def test_serving_imports_neither_torch_nor_what_builds(built) -> None:
    server = started(built, "serve", "tiny", "--port", 0)
    assert server.stdout is not None
    line = server.stdout.readline()
    assert "(ready)" in line, server.communicate(timeout=60)[1]
    assert complete(line.split(" at ")[1].split()[0])
    server.send_signal(signal.SIGINT)
    assert not finished(server) & NOT_FOR_SERVING


def test_a_question_offline_imports_no_server(built) -> None:
    assert not finished(started(built, "chat", "tiny", "Hi", "--max-tokens", 2)) & NOT_OFFLINE


@pytest.mark.parametrize("option", [[], ["--profile"]], ids=["plain", "profiled"])
def test_the_split_of_a_step_is_told_at_the_end_when_asked_for(built, option: list[str]) -> None:
    done = built.run("chat", "tiny", "Hi", "--max-tokens", 3, *option)
    assert done.returncode == 0, done.stderr
    table = [line.split() for line in done.stderr.splitlines() if line.endswith("%")]
    assert bool(table) == bool(option)
    assert bool(re.search(r"^[1-3] steps, ", done.stderr, re.MULTILINE)) == bool(option)
    assert sum(float(row[-1].rstrip("%")) for row in table) == pytest.approx(100 if option else 0, abs=1)


def test_a_server_tells_the_split_of_its_steps_when_it_ends(built) -> None:
    server = built.start("serve", "tiny", "--port", "0", "--profile")
    url = server.stdout.readline().split(" at ")[1].split()[0]
    complete(url)
    server.send_signal(signal.SIGINT)
    _, err = server.communicate(timeout=60)
    assert server.returncode == 0, err
    assert re.search(r"^tiny: [1-4] steps, ", err, re.MULTILINE)


def test_a_log_on_a_full_disk_does_not_keep_a_server_from_serving(built) -> None:
    command = [sys.executable, "-m", "gristmill.cli.app", "serve", "tiny", "--port", "0"]
    command += ["--store", str(built.store)]
    with (
        open("/dev/full", "w") as full,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=full, text=True) as server,
    ):
        assert server.stdout is not None
        line = server.stdout.readline()
        assert "(ready)" in line
        assert complete(line.split(" at ")[1].split()[0])
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0


def test_an_output_that_can_not_be_written_is_said_and_its_code_is_the_contracts(built) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gristmill.cli.app", "list", "--store", str(built.store)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 3
    assert done.stderr.startswith("error: can't write the output; found No space left on device")
