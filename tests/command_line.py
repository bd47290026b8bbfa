"""The `gristmill` command as a real process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["CommandLine"]

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
