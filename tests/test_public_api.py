"""`__all__` is what each module offers, no more and no less."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import gristmill

ROOT = Path(__file__).parent.parent / "src" / "gristmill"
MODULES = sorted(
    ".".join(("gristmill", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for folder in ("pipeline", "calibration", "runtime", "recipes", "artifacts", "cli")
    for path in (ROOT / folder).resolve().rglob("*.py")
    for path in [ROOT / folder / path.relative_to((ROOT / folder).resolve())]
)


def test_the_facade_exports_exactly_its_all() -> None:
    public = {name for name in vars(gristmill) if not name.startswith("_")}
    submodules = {"pipeline", "calibration", "runtime", "recipes", "artifacts", "cli", "facade"}
    assert public - submodules <= set(gristmill.__all__)
    assert all(hasattr(gristmill, name) for name in gristmill.__all__)


@pytest.mark.parametrize("name", MODULES)
def test_public_definitions_are_listed_in_all(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text())
    defined = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
    }
    listed = set(getattr(module, "__all__", ()))
    assert defined <= listed, f"public but not listed: {sorted(defined - listed)}"
    assert all(hasattr(module, entry) for entry in listed)
