"""`gristmill serve` as a real process with the tiny model on the native engine."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from gristmill.facade import engine_folder
from tests.command_line import CommandLine

__all__ = ["MODEL", "RunningServer", "read_metrics", "serving"]

MODEL = "tiny"


@dataclass(frozen=True)
class RunningServer:
    """Its address without a path, its process, and the folder of the model's tokenizer."""

    url: str
    pid: int
    tokenizer: Path


@contextmanager
def serving(built: CommandLine, *options: object) -> Iterator[RunningServer]:
    """A server with these options; it must end well, without having logged a traceback."""
    process = built.start("serve", MODEL, "--port", 0, "--json", "--log-level", "warning", *options)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        checkpoint = engine_folder(MODEL, store=built.store).checkpoint
        yield RunningServer(json.loads(line)["url"], process.pid, checkpoint)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0, log
        assert "Traceback" not in log, log
    finally:
        process.kill()
        process.wait()


def read_metrics(url: str) -> dict[str, float]:
    """The metrics of the one model by name, further labels as written: `name{finished_reason="stop"}`."""
    values: dict[str, float] = {}
    for line in httpx.get(f"{url}/metrics", timeout=30).text.splitlines():
        if line.startswith("gristmill:"):
            name, value = line.removeprefix("gristmill:").rsplit(" ", 1)
            for label in (f',model_name="{MODEL}"', f'model_name="{MODEL}",', f'model_name="{MODEL}"'):
                name = name.replace(label, "")
            values[name.replace("{}", "")] = float(value)
    return values
