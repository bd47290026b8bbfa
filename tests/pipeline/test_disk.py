"""The disk plan: what a build leaves in the store, and a refusal before any work."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gristmill.artifacts.store import Store
from gristmill.pipeline import disk
from gristmill.pipeline.disk import plan_disk, require_disk
from gristmill.pipeline.model import open_model
from gristmill.pipeline.run import build
from gristmill.pipeline.stages import StageCache
from gristmill.recipes.load import load_recipe
from gristmill.runtime.errors import StorageError


def bytes_below(folder: Path) -> int:
    """Each file once, however many links it has."""
    found = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return sum({status.st_ino: status.st_size for status in found}.values())


def recipe_file(folder: Path, model: Path, **quantize: object) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "name": "tiny",
                "model": str(model),
                "quantize": {"method": "rtn", "group_size": 32, **quantize},
                "compile": ["native-x86"],
            }
        )
    )
    return path


@pytest.mark.parametrize("scheme", ["W4A16_ASYM", "W8A16"])
def test_a_build_leaves_about_as_much_as_was_planned(tmp_path: Path, tiny_llama: Path, scheme: str) -> None:
    recipe = load_recipe(recipe_file(tmp_path, tiny_llama, scheme=scheme))
    planned = plan_disk(open_model(recipe), recipe)
    build(recipe, Store(tmp_path / "store"))
    stages = tmp_path / "store" / "stages"
    left = {name: bytes_below(stages / name) for name in ("quantize", "checkpoint", "compile")}
    of_stages = (planned.layers, planned.checkpoints, planned.engines)
    headers = 40_000  # of layers' files, an index each, and plan.json: a fixed price that a tiny model shows
    for expected, (name, size) in zip(of_stages, left.items(), strict=True):
        assert 0.7 * (size - headers) <= expected, name
        assert size <= 1.05 * expected + headers, name
    assert bytes_below(tmp_path / "store") <= planned.total


def test_too_little_space_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(
        StorageError, match=r"disk space .* found .* free; expected 1000\.0 TB for this build"
    ):
        require_disk(10**15, tmp_path / "not" / "there" / "yet")


def test_a_build_that_will_not_fit_ends_before_the_first_layer(
    tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "free_disk", lambda folder: 1_000_000)
    store = Store(tmp_path / "store")
    with pytest.raises(StorageError, match="disk space"):
        build(load_recipe(recipe_file(tmp_path, tiny_llama, scheme="W4A16")), store)
    assert not (store.layout.stages / "quantize").exists()


def test_a_finished_build_needs_no_space(
    tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, store = load_recipe(recipe_file(tmp_path, tiny_llama, scheme="W4A16")), Store(tmp_path / "store")
    first = build(recipe, store)
    monkeypatch.setattr(disk, "free_disk", lambda folder: 0)
    assert build(recipe, store).digest == first.digest


def test_what_a_killed_build_left_counts(tmp_path: Path) -> None:
    stages = StageCache(tmp_path)
    with stages.open("quantize", "key") as stage:
        (stage.folder / "layer").write_bytes(bytes(300))
    assert stages.missing("quantize", "key", 1_000) == 700
    assert stages.missing("quantize", "other", 1_000) == 1_000
    stage.finish()
    assert stages.missing("quantize", "key", 1_000) == 0
