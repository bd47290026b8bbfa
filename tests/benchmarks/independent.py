"""The independent measure: a script beside the repository that uses transformers alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from gristmill.pipeline.environment import build_threads
from tests.benchmarks.demo_model import ROOT

__all__ = ["TOOLS", "evaluate", "make_reference_logits", "run_script"]

TOOLS = Path(os.environ.get("GRISTMILL_QUALITY_TOOLS", ROOT.parent / "shared" / "tools" / "quality"))


def make_reference_logits(reference: Path) -> None:
    done = reference.parent / "reference-logits.done"
    if not done.exists():
        evaluate(reference, ["--make-ref"])
        done.touch()


def evaluate(reference: Path, arguments: Sequence[str], checkpoint: Path | None = None) -> dict[str, float]:
    cache = str(reference.parent / "reference-logits.bin")
    command = [sys.executable, str(TOOLS / "evalq.py"), str(checkpoint or reference), "--ref", str(reference)]
    command += ["--cache", cache, "--ppl-tokens", "8192", "--out", os.devnull, *arguments]
    return cast(dict[str, float], json.loads(run_script(command, reference.parent).splitlines()[-1]))


def run_script(command: Sequence[str], folder: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": str(build_threads())}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command[1]} failed:\n{done.stderr[-2000:]}")
    return done.stdout
