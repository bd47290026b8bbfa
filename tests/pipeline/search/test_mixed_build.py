"""Whole builds of the tiny model with a search and with a repair."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gristmill.artifacts.artifact import Artifact
from gristmill.artifacts.store import Store
from gristmill.pipeline.report.evidence import read_widths
from gristmill.pipeline.run import build
from gristmill.recipes import load_recipe
from gristmill.runtime.errors import GateError
from tests.listener import Listener

WriteRecipe = Callable[..., Path]
DATA = [{"path": "heldout.jsonl", "window": 128, "tokens": 256}]
CALIBRATION = {"prompts": [{"path": "chats.jsonl"}], "samples": 4, "max_tokens": 64}


def run(folder: Path, write_recipe: WriteRecipe, **changes: Any) -> tuple[Artifact, Listener]:
    listener = Listener()
    recipe = load_recipe(write_recipe(folder, calibration=CALIBRATION, **changes))
    return build(recipe, Store(folder / "store"), progress=listener), listener


def quantize(**settings: Any) -> dict[str, Any]:
    return {"scheme": "W4A16_ASYM", "method": "gptq", "group_size": 32, **settings}


def test_a_search_keeps_its_budget_and_leaves_its_evidence(tmp_path: Path, write_recipe: WriteRecipe) -> None:
    search = {"budget": {"bits_per_weight": 4.6}, "group_size": [32, 64]}
    artifact, listener = run(
        tmp_path,
        write_recipe,
        quantize=quantize(search=search),
        validate={"data": DATA},
        compile=["native-x86"],
    )
    choice = read_widths(artifact)
    assert choice is not None
    assert artifact.manifest.bits_per_weight.quantized_layers <= 4.6
    stored = {
        name: (group.scheme.bits, group.scheme.group_size)
        for group in artifact.manifest.schemes
        for name in group.linears
    }
    assert stored == {name: (unit.bits, unit.group_size) for unit in choice.units for name in unit.linears}
    assert len(set(stored.values())) > 1
    assert any(note.startswith("search: 12 sets of linears: ") for note in listener.notes)
    again, second = run(
        tmp_path,
        write_recipe,
        quantize=quantize(search=search),
        validate={"data": DATA},
        compile=["native-x86"],
    )
    assert again.digest == artifact.digest
    assert second.stages == []


def test_a_failing_gate_is_repaired_and_every_promotion_is_told(
    tmp_path: Path, write_recipe: WriteRecipe
) -> None:
    plain, _ = run(tmp_path / "plain", write_recipe, validate={"data": DATA})
    limit = 0.5 * plain.manifest.validation["reference"].kl.mean
    validate = {"data": DATA, "gates": {"kl_mean": f"< {limit:.6f}"}}
    with pytest.raises(GateError):
        run(tmp_path / "failing", write_recipe, validate=validate)
    artifact, listener = run(tmp_path / "failing", write_recipe, validate={**validate, "auto_repair": True})
    assert artifact.manifest.validation["reference"].kl.mean < limit
    choice = read_widths(artifact)
    assert choice is not None
    told = [note.removeprefix("repair: ") for note in listener.notes if "promoted from" in note]
    assert told == list(choice.promotions) != []
    widened = {name for unit in choice.units if unit.promoted_from for name in unit.linears}
    assert widened == {
        name for group in artifact.manifest.schemes if group.scheme.bits > 4 for name in group.linears
    }
    record = json.loads(next((tmp_path / "failing" / "store" / "records").iterdir()).read_text())
    assert "repair" in [stage["stage"] for stage in record["stages"]]


def test_a_gate_that_no_width_passes_fails_after_the_last_promotion(
    tmp_path: Path, write_recipe: WriteRecipe
) -> None:
    settings = {
        "bits": 6,
        "symmetric": True,
        "method": "rtn",
        "group_size": 32,
        "skip": ["lm_head", "*.layers.[01].*"],
    }
    validate = {"data": DATA, "gates": {"kl_mean": "< 0.0000001"}, "auto_repair": True}
    with pytest.raises(GateError, match="kl_mean"):
        run(tmp_path, write_recipe, quantize=settings, validate=validate)
