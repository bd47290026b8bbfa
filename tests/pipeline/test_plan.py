"""The memory plan: an upper bound from shapes, held against limits before any work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gristmill.pipeline.model import open_model
from gristmill.pipeline.plan import MemoryPlan, plan_memory, require_memory
from gristmill.pipeline.quantize.settings import quantize_settings
from gristmill.recipes.load import load_recipe
from gristmill.runtime.errors import InputError, OutsideError

BUILD = """
import sys
from pathlib import Path
from gristmill.artifacts.store import Store
from gristmill.pipeline.environment import peak_memory
from gristmill.pipeline.run import build
from gristmill.recipes.load import load_recipe
build(load_recipe(Path(sys.argv[1])), Store(Path(sys.argv[2])))
print(peak_memory())
"""


def test_more_than_the_users_limit_is_refused_with_both_numbers() -> None:
    with pytest.raises(InputError, match=r"--memory; found 1\.00 GB; expected 1\.45 GB"):
        require_memory(MemoryPlan(1_000_000_000, 500_000_000), 1_000_000_000)


def test_more_than_the_machine_has_is_refused() -> None:
    with pytest.raises(OutsideError, match="memory"):
        require_memory(MemoryPlan(10**15, 0), None)


def test_a_build_stays_within_what_was_planned(tmp_path: Path, tiny_llama: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"name: tiny\nmodel: {tiny_llama}\nquantize: {{scheme: W4A16, method: rtn, group_size: 32}}\n"
    )
    loaded = load_recipe(recipe)
    model = open_model(loaded)
    planned = plan_memory(model, quantize_settings(loaded, model.schemes), None, ())
    command = [sys.executable, "-c", BUILD, str(recipe), str(tmp_path / "store")]
    measured = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert measured <= planned.total
