"""A whole build with a quantized cache: the recipe's format is proved, validated and served by default."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gristmill
from gristmill.artifacts.artifact import Artifact
from gristmill.artifacts.engines import open_engine
from gristmill.artifacts.store import Store
from gristmill.pipeline.compile.export import export_checkpoint
from gristmill.pipeline.engine_proof import prove_engine
from gristmill.pipeline.run import build
from gristmill.recipes import load_recipe
from gristmill.runtime.checkpoint import open_checkpoint
from gristmill.runtime.errors import IntegrityError, UnsupportedError
from gristmill.runtime.executors.native.engine_file import read_engine_file
from gristmill.runtime.llm import load_engine
from gristmill.runtime.settings import EngineSettings

Build = Callable[[str], Artifact]
RTN = {"scheme": "W8A16", "group_size": 32, "method": "rtn"}
CACHES: dict[str, dict[str, str]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "fp8": {"dtype": "fp8", "scales": "head"},
    "int4": {"dtype": "int4"},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("kv") / "store")


@pytest.fixture(scope="module")
def built_with(store: Store, write_recipe: Any) -> Build:
    """The tiny model with one of `CACHES`, built once."""
    made: dict[str, Artifact] = {}

    def make(name: str) -> Artifact:
        if name not in made:
            changes = {"kv_cache": CACHES[name], "quantize": RTN, "compile": ["native-x86"], "name": name}
            folder = write_recipe(store.path.parent / name, **changes)
            made[name] = build(load_recipe(str(folder)), store)
        return made[name]

    return make


@pytest.mark.parametrize("dtype", CACHES)
def test_every_engine_is_proved_and_served_in_the_recipes_format(built_with: Build, dtype: str) -> None:
    artifact = built_with(dtype)
    for entry in artifact.manifest.engines:
        assert entry.kv_cache == dtype
        assert entry.golden is not None
        engine = load_engine(open_engine(artifact, entry.target))
        assert engine.info.kv_cache == dtype
        engine.close()


def test_what_a_user_asks_for_outranks_the_recipe(built_with: Build) -> None:
    engine = load_engine(open_engine(built_with("int4"), "native-x86"), EngineSettings(kv_cache_dtype="int8"))
    assert engine.info.kv_cache == "int8"
    engine.close()


@pytest.mark.parametrize("target", ["reference", "native-x86"])
def test_validation_sees_the_quantized_cache(built_with: Build, target: str) -> None:
    exact, coarse = (built_with(name).manifest.validation[target].kl.mean for name in ("bfloat16", "int4"))
    assert coarse > 1.5 * exact


def test_calibrated_scales_reach_the_engine(built_with: Build) -> None:
    folder = built_with("fp8").folder
    scales = open_checkpoint(folder / "checkpoint").kv_scales
    assert [len(layer.keys) for layer in scales] == [2, 2, 2]
    assert read_engine_file(folder / "engines" / "native-x86").kv_scales == scales
    block = json.loads((folder / "checkpoint" / "config.json").read_text())["quantization_config"]
    assert block["kv_cache_scheme"]["strategy"] == "attn_head"


def test_an_engine_that_ignores_the_scales_is_refused(built_with: Build) -> None:
    """Here one that was compiled from a checkpoint without them."""
    folder = open_engine(built_with("bfloat16"), "native-x86")
    other = replace(folder, checkpoint=built_with("fp8").folder / "checkpoint", kv_cache="fp8")
    with pytest.raises(IntegrityError, match="native-x86 ignores the checkpoint's scales of layer 0"):
        prove_engine(other, ("fp8",))


def test_an_export_that_would_lose_the_scales_is_refused(built_with: Build, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="scales of an fp8 cache; found format awq"):
        export_checkpoint("awq", built_with("fp8").folder / "checkpoint", tmp_path / "out")


def test_an_export_that_holds_the_scales_has_them(built_with: Build, tmp_path: Path) -> None:
    own = built_with("fp8").folder / "checkpoint"
    export_checkpoint("compressed-tensors", own, tmp_path / "out")
    assert open_checkpoint(tmp_path / "out").kv_scales == open_checkpoint(own).kv_scales


def test_an_answer_comes_from_the_quantized_cache(built_with: Build, store: Store) -> None:
    built_with("fp8")
    with gristmill.LLM("fp8", store=store.path) as llm:
        (answer,) = llm.generate(["Tell me"], gristmill.SamplingParams(max_tokens=4, temperature=0))
    assert len(answer.outputs[0].token_ids) >= 1
