"""Whole commands as real processes, on a tiny model and a store of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

TIMEOUT_S = 240


@dataclass(frozen=True)
class CommandLine:
    """The `gristmill` command against one store."""

    store: Path
    environment: dict[str, str] = field(default_factory=dict)

    def start(self, *arguments: object, **options: Any) -> subprocess.Popen[str]:
        """The process of one command, its output captured."""
        command = [
            sys.executable,
            "-m",
            "gristmill.cli.app",
            *map(str, arguments),
            "--store",
            str(self.store),
        ]
        environment = {**os.environ, **self.environment}
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, **options)

    def run(self, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
        """One command from start to end."""
        process = self.start(*arguments, **options)
        out, err = process.communicate(timeout=TIMEOUT_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def json(self, *arguments: object) -> Any:
        """What a command that must succeed prints with --json."""
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def stop_when(
        self, appears: str, how: signal.Signals, *arguments: object
    ) -> subprocess.CompletedProcess[str]:
        """Start a command and send it a signal as soon as a path below the store appears."""
        process = self.start(*arguments)
        give_up = time.monotonic() + TIMEOUT_S
        while not any(self.store.glob(appears)):
            assert process.poll() is None, f"ended before {appears}: {process.communicate()[1]}"
            assert time.monotonic() < give_up
            time.sleep(0.001)
        process.send_signal(how)
        out, err = process.communicate(timeout=TIMEOUT_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


WriteRecipe = Callable[..., Path]


def _chats(count: int, first: int) -> str:
    rows = (
        {
            "messages": [{"role": "user", "content": f"Tell me {n} things about number {n * 37}. " * 12}],
            "reference": f"The number {n * 37} is the product of {n} and 37. " * 6,
        }
        for n in range(first, first + count)
    )
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="session")
def write_recipe(tiny_llama: Path) -> WriteRecipe:
    """Write a recipe for the tiny model, with its prompts, into a folder; a change to None drops a key."""

    def write(folder: Path, **changes: Any) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "chats.jsonl").write_text(_chats(40, 0))
        (folder / "heldout.jsonl").write_text(_chats(12, 100))
        recipe: dict[str, Any] = {
            "name": "tiny",
            "model": str(tiny_llama),
            "calibration": {"prompts": [{"path": "chats.jsonl"}], "samples": 16, "max_tokens": 128},
            "quantize": {"scheme": "W4A16_ASYM", "method": "gptq", "group_size": 32},
            "validate": {
                "data": [{"path": "heldout.jsonl", "window": 128, "tokens": 512}],
                "gates": {"kl_mean": "< 5"},
            },
            **changes,
        }
        recipe = {key: value for key, value in recipe.items() if value is not None}
        path = folder / "recipe.yaml"
        path.write_text(yaml.safe_dump(recipe))
        return path

    return write


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, write_recipe: WriteRecipe) -> CommandLine:
    """A store with the tiny model built once, with an AWQ export and a native engine."""
    folder = tmp_path_factory.mktemp("built")
    command = CommandLine(folder / "store")
    done = command.run("build", write_recipe(folder / "recipe", compile=["awq", "native-x86"]))
    assert done.returncode == 0, done.stderr
    return command


@pytest.fixture
def command(tmp_path: Path) -> CommandLine:
    """The command line with an empty store."""
    return CommandLine(tmp_path / "store")
