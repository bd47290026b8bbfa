"""The demo model as an engine for speed: 4 bits, symmetric groups of 64, plainly rounded."""

from __future__ import annotations

from pathlib import Path

from gristmill.artifacts.engines import REFERENCE, open_engine
from gristmill.facade import build
from gristmill.pipeline.compile.native_x86 import compile_native
from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.executors.native.engine_file import PLAN_FILE
from tests.benchmarks.demo_model import MODEL

__all__ = ["demo_engine"]

_RECIPE = f"""\
name: bench
model: {MODEL}
quantize: {{scheme: W4A16, group_size: 64, method: rtn}}
"""


def demo_engine(folder: Path, target: str) -> EngineFolder:
    """The engine for `target`, built under `folder` if it is not there; native ones are lowered each time."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe = folder / "bench.yaml"
    if not recipe.exists() or recipe.read_text() != _RECIPE:
        recipe.write_text(_RECIPE)
    artifact = build(recipe, store=folder / "store")
    if target == REFERENCE:
        return open_engine(artifact, target)
    checkpoint, native = artifact.folder / "checkpoint", folder / target
    (native / PLAN_FILE).unlink(missing_ok=True)
    compile_native(checkpoint, native)
    return EngineFolder(artifact.name, target, native, checkpoint)
