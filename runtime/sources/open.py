"""From what a user writes for a model to its source."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gristmill.runtime.errors import ModelError, OutsideError
from gristmill.runtime.sources.base import ModelSource
from gristmill.runtime.sources.gguf_names import gguf_parts
from gristmill.runtime.sources.hf_folder import HfFolder
from gristmill.runtime.sources.hub import is_model_id, open_hub_model
from gristmill.runtime.sources.package import find_packaged_model

__all__ = ["open_source"]

_EXPECTED = "a folder, a .gguf file, package:NAME or a Hugging Face id org/name"
_PACKAGE = "package:"
_GGUF_MAGIC = b"GGUF"


def open_source(model: str, base: Path) -> ModelSource:
    """The source that `model` names; a relative path starts at `base`.

    A path that exists outranks a Hugging Face id of the same form. Raises
    ModelError for what can't be a model, OutsideError for a hub that can't be
    reached.
    """
    if not model.strip() or "\0" in model:
        raise ModelError("model", found=repr(model), expected=_EXPECTED)
    if model.startswith(_PACKAGE):
        packaged = find_packaged_model(model.removeprefix(_PACKAGE))
        if packaged.folder is not None:
            return HfFolder(packaged.folder, name=model)
        return _open_gguf(packaged.gguf_parts, model)
    path = base / os.path.expanduser(model)
    # os.path answers False where the methods of Path raise: a name too long, a link to itself.
    if os.path.isdir(path):
        return _open_folder(path, model)
    if os.path.isfile(path):
        return _open_file(path, model)
    if is_model_id(model) and path.suffix != ".gguf":
        return open_hub_model(model)
    raise ModelError(f"there is no model {model}", found=f"no folder or file {path}", expected=_EXPECTED)


def _open_folder(path: Path, model: str) -> ModelSource:
    try:
        return HfFolder(path, name=model)
    except PermissionError as error:
        raise ModelError(f"can't read {path}", found=error.strerror) from error


def _open_file(path: Path, model: str) -> ModelSource:
    try:
        with path.open("rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
    except OSError as error:
        raise ModelError(f"can't read {path}", found=error.strerror) from error
    if path.suffix == ".gguf" or magic == _GGUF_MAGIC:
        return _open_gguf(gguf_parts(path), model)
    hint = "give the folder it lies in" if path.suffix in (".safetensors", ".json", ".bin") else None
    raise ModelError(f"{path} is not a model", expected=_EXPECTED, hint=hint)


def _open_gguf(parts: Sequence[Path], model: str) -> ModelSource:
    try:
        # Serving does without the gguf package, so only a GGUF source asks for it.
        from gristmill.runtime.sources.gguf_file import GgufFile
    except ModuleNotFoundError as error:
        if error.name != "gguf":
            raise
        raise OutsideError(
            f"reading {parts[0].name} needs the package gguf", hint="pip install 'gristmill[build]'"
        ) from error
    return GgufFile(parts, name=model)
