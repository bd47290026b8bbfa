"""Golden prompts on disk: `golden/prompts.json` and `golden/logits.safetensors`.

Logits stay float32: a row of 49,152 logits is 192 KiB, so the usual eight
prompts of four rows add 6 MiB, and rounding can't blur the comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, TypeAdapter
from safetensors import SafetensorError
from safetensors.numpy import load, save

from gristmill.artifacts.reading import read_bounded
from gristmill.artifacts.strict_json import parse_canonical, to_canonical
from gristmill.runtime.engine_folder import GoldenPrompt
from gristmill.runtime.errors import ArtifactError
from gristmill.runtime.files import write_atomic

__all__ = ["LOGITS_FILE", "PROMPTS_FILE", "read_golden", "write_golden"]

PROMPTS_FILE = "prompts.json"
LOGITS_FILE = "logits.safetensors"

_MAX_PROMPTS_BYTES = 16 << 20
_MAX_LOGITS_BYTES = 1 << 30
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


@dataclass(frozen=True, slots=True)
class _Entry:
    token_ids: Annotated[tuple[TokenId, ...], Field(min_length=1)]
    rows: Annotated[int, Field(ge=1)]
    continuation: tuple[TokenId, ...]


@dataclass(frozen=True, slots=True)
class _Prompts:
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")

    schema_version: Literal[1]
    prompts: tuple[_Entry, ...]


_ADAPTER = TypeAdapter(_Prompts)


def write_golden(folder: Path, prompts: Sequence[GoldenPrompt]) -> None:
    """Write golden prompts into `folder`; the same prompts give the same bytes. Raises StorageError."""
    entries = tuple(_Entry(prompt.token_ids, len(prompt.logits), prompt.continuation) for prompt in prompts)
    tensors = {
        _tensor_name(index): np.ascontiguousarray(prompt.logits, dtype=np.float32)
        for index, prompt in enumerate(prompts)
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / PROMPTS_FILE, to_canonical(_ADAPTER, _Prompts(1, entries), PROMPTS_FILE))
    write_atomic(folder / LOGITS_FILE, save(tensors))


def read_golden(folder: Path) -> tuple[GoldenPrompt, ...]:
    """Inverse of `write_golden`. Raises ArtifactError naming the file and the rule."""
    path = folder / LOGITS_FILE
    stored = parse_canonical(_ADAPTER, read_bounded(folder / PROMPTS_FILE, _MAX_PROMPTS_BYTES), PROMPTS_FILE)
    try:
        tensors = load(read_bounded(path, _MAX_LOGITS_BYTES))
    except SafetensorError as error:
        raise ArtifactError(f"{path}: not a safetensors file", found=str(error)) from error
    expected = {_tensor_name(index) for index in range(len(stored.prompts))}
    if set(tensors) != expected:
        raise ArtifactError(f"{path}: tensors", found=sorted(tensors), expected=sorted(expected))
    return tuple(
        GoldenPrompt(entry.token_ids, _checked(path, tensors[_tensor_name(index)], entry), entry.continuation)
        for index, entry in enumerate(stored.prompts)
    )


def _tensor_name(index: int) -> str:
    return f"prompt.{index:03d}"


def _checked(path: Path, logits: NDArray[np.generic], entry: _Entry) -> NDArray[np.float32]:
    if logits.dtype != np.float32 or logits.ndim != 2 or len(logits) != entry.rows:
        raise ArtifactError(
            f"{path}: logits",
            found=f"{logits.dtype} {logits.shape}",
            expected=f"float32 ({entry.rows}, vocabulary)",
        )
    if entry.rows > len(entry.token_ids) or not np.isfinite(logits).all():
        raise ArtifactError(f"{path}: logits", expected="finite rows, no more than the prompt has tokens")
    return logits.astype(np.float32, copy=False)
