"""How an engine reproduces the golden prompts in each of its number formats: `golden/<target>.json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from gristmill.artifacts.reading import read_bounded
from gristmill.artifacts.strict_json import parse_canonical, to_canonical
from gristmill.runtime.errors import ArtifactError
from gristmill.runtime.files import write_atomic

__all__ = ["ModeProof", "proofs_file", "read_proofs", "write_proofs"]

_MAX_BYTES = 1 << 20
Measure = Annotated[float, Field(ge=0)]
Word = Annotated[str, Field(min_length=1, max_length=512)]


@dataclass(frozen=True, slots=True)
class ModeProof:
    """One compute and KV format; KL in nats, recorded against produced, over all rows of all prompts."""

    compute: Word
    kv_cache: Word
    kl_mean: Measure
    kl_max: Measure
    top1_agreement: Annotated[float, Field(ge=0, le=1)]
    tolerance: Measure


@dataclass(frozen=True, slots=True)
class _Proofs:
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    schema_version: Literal[1]
    modes: Annotated[tuple[ModeProof, ...], Field(min_length=1)]


_ADAPTER = TypeAdapter(_Proofs)


def proofs_file(target: str) -> str:
    """The name, inside `golden/`, of an engine's proofs."""
    return f"{target}.json"


def write_proofs(path: Path, proofs: Sequence[ModeProof]) -> None:
    """Write proofs, sorted; equal proofs give equal bytes. Raises StorageError."""
    ordered = tuple(sorted(proofs, key=_mode))
    write_atomic(path, to_canonical(_ADAPTER, _Proofs(1, ordered), path.name))


def read_proofs(path: Path) -> tuple[ModeProof, ...]:
    """Inverse of `write_proofs`. Raises ArtifactError naming the file and the rule."""
    proofs = parse_canonical(_ADAPTER, read_bounded(path, _MAX_BYTES), path).modes
    modes = [_mode(proof) for proof in proofs]
    if sorted(set(modes)) != modes:
        raise ArtifactError(f"{path}: modes", expected="sorted by compute and kv_cache, none twice")
    return proofs


def _mode(proof: ModeProof) -> tuple[str, str]:
    return proof.compute, proof.kv_cache
