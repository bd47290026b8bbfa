"""A whole build with quantized inputs or float4 weights: from the recipe to an artifact that is served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gristmill.artifacts.store import Store
from gristmill.pipeline.run import build
from gristmill.recipes import load_recipe
from gristmill.runtime.checkpoint import open_checkpoint

BUILDS: dict[str, dict[str, Any]] = {
    "W4A8_G32": {"scheme": "W4A8", "group_size": 32, "method": "gptq"},
    "W8A8_CHANNEL": {"scheme": "W8A8", "method": "smoothquant"},
    "FP8_DYNAMIC_CHANNEL": {"scheme": "FP8_DYNAMIC", "method": "rtn"},
}


@pytest.mark.parametrize("name", BUILDS)
def test_a_build_proves_what_it_serves(tmp_path: Path, write_recipe: Any, name: str) -> None:
    recipe = load_recipe(str(write_recipe(tmp_path / "recipe", quantize=BUILDS[name])))
    artifact = build(recipe, Store(tmp_path / "store"))
    manifest = artifact.manifest
    assert [group.name for group in manifest.schemes] == [name]
    assert [engine.target for engine in manifest.engines] == ["reference"]
    assert manifest.validation["reference"].kl.mean < 0.1
    assert manifest.bits_per_weight.quantized_layers < 8.51
    config = json.loads((artifact.folder / "checkpoint" / "config.json").read_text())
    group = config["quantization_config"]["config_groups"]["group_0"]
    assert group["input_activations"]["strategy"] == "token"
    schemes = open_checkpoint(artifact.folder / "checkpoint").schemes
    assert {scheme.name for scheme in schemes.values()} == {name}


@pytest.mark.parametrize(("name", "bits"), [("NVFP4A16", 4.5), ("MXFP4A16", 4.25)])
def test_a_build_of_float4_weights_is_served_by_both_engines(
    tmp_path: Path, write_recipe: Any, name: str, bits: float
) -> None:
    quantize, compile = {"scheme": name, "method": "rtn"}, ["native-x86"]
    recipe = write_recipe(tmp_path / "recipe", quantize=quantize, compile=compile, calibration=None)
    manifest = build(load_recipe(str(recipe)), Store(tmp_path / "store")).manifest
    assert [group.name for group in manifest.schemes] == [name]
    assert manifest.bits_per_weight.quantized_layers == bits
    assert {engine.target for engine in manifest.engines} == {"reference", "native-x86"}
    reference, native = (manifest.validation[engine].kl.mean for engine in ("reference", "native-x86"))
    assert native == pytest.approx(reference, rel=0.25)
