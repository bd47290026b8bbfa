"""Field rules that several parts of the schema share."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator, ValidationInfo

from gristmill.recipes.gates import Gate, parse_gate, parse_task_gate
from gristmill.recipes.refusals import refusal
from gristmill.runtime.errors import RecipeError
from gristmill.runtime.files import sha256_file
from gristmill.runtime.prompt_kind import prompt_kind

__all__ = ["Bits", "GateField", "GroupSize", "InputFile", "TaskGateField", "infer_kind", "require_digest"]

Bits = Literal[2, 3, 4, 5, 6, 8]
"""Widths of a weight: the checkpoint format packs each densely, and every engine reads them."""


def _group_size(size: int) -> int:
    if size < 1 and size != -1:
        raise refusal("a positive number, or -1 for one group a row")
    return size


GroupSize = Annotated[int, AfterValidator(_group_size)]
"""Input columns that share a scale."""


def _existing_file(path: Path, info: ValidationInfo) -> Path:
    """`path` made absolute against the context's `base`; without a base it is left as it is."""
    base = (info.context or {}).get("base")
    if base is None:
        return path
    absolute = Path(base) / os.path.expanduser(path)
    # os.path answers False where the methods of Path raise: a name too long, a home that isn't known.
    if not os.path.isfile(absolute):
        what = "is not a file" if os.path.exists(absolute) else "does not exist"
        raise refusal(
            "a file, relative to the recipe", found=f"{path}, which {what}", hint=_nearest_file(absolute)
        )
    return absolute.resolve()


def _nearest_file(missing: Path) -> str | None:
    """The file of the same folder whose name is most like that of `missing`."""
    folder = missing.parent
    names = [path.name for path in folder.iterdir() if path.is_file()] if os.path.isdir(folder) else []
    close = difflib.get_close_matches(missing.name, names, n=1)
    return f"did you mean {close[0]}?" if close else None


InputFile = Annotated[Path, Field(strict=False), AfterValidator(_existing_file)]


def infer_kind(value: Any, info: ValidationInfo) -> Any:
    """The kind as given, else told from the file's suffix (see `runtime/prompt_kind.py`)."""
    if value is not None:
        return value
    path = info.data.get("path")
    if path is None:  # the path itself is at fault and reported
        return "chat"
    kind = prompt_kind(path)
    if kind is None:
        raise refusal(
            "chat, text or tokens", found=f"no kind, and {path.name} does not tell it", hint="add kind: ..."
        )
    return kind


def require_digest(digest: str | None, info: ValidationInfo) -> str | None:
    """Compare the file's content with its pinned digest."""
    path = info.data.get("path")
    if digest is None or path is None or not path.is_file():
        return digest
    if (actual := sha256_file(path)) != digest:
        raise refusal(f"sha256 {digest}", found=f"{path.name} with sha256 {actual}")
    return digest


def _gate(value: Any, info: ValidationInfo) -> Gate:
    return _parsed(value, partial(parse_gate, str(info.field_name)))


def _task_gate(value: Any, info: ValidationInfo) -> Gate:
    return _parsed(value, partial(parse_task_gate, str(info.data.get("task", ""))))


def _parsed(value: Any, parse: Callable[[str], Gate]) -> Gate:
    if isinstance(value, Gate):
        return value
    if not isinstance(value, str):
        raise refusal('text such as "< 0.20"')
    try:
        return parse(value)
    except RecipeError as error:
        raise refusal(str(error.expected), found=str(error.found)) from error


GateField = Annotated[Gate, PlainValidator(_gate), PlainSerializer(lambda gate: gate.expression)]
TaskGateField = Annotated[Gate, PlainValidator(_task_gate), PlainSerializer(lambda gate: gate.expression)]
