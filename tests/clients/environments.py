"""An environment for each client: their pins contradict each other's and ours.

Made under build/clients on first use from the pinned requirement file beside
this one; a changed file makes it anew. `python -m tests.clients.environments` makes all.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["CLIENTS", "client_environment"]

CLIENTS = ("schemathesis", "lm-eval", "guidellm", "aiperf")

_HERE = Path(__file__).parent
_FOLDER = _HERE.parents[1] / "build" / "clients"


def client_environment(name: str) -> Path:
    """The folder of a client's programs; installs it if it is not there."""
    requirements = _HERE / f"requirements-{name}.txt"
    folder = _FOLDER / name
    installed = folder / "installed.txt"
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with open(_FOLDER / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed.exists() or installed.read_text() != requirements.read_text():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--no-deps", "--no-compile"]
            subprocess.run([*pip, "-r", str(requirements)], check=True)
            shutil.copyfile(requirements, installed)
    return folder / "bin"


def main() -> None:
    """Make what is missing."""
    for name in CLIENTS:
        begun = time.monotonic()
        client_environment(name)
        print(f"{name} is ready ({time.monotonic() - begun:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
