"""What `manifest.json` says: everything that an artifact's digest stands for.

Nothing here varies between two runs of one recipe: times, hosts and resources
belong to the build record (`record.py`). README.md has the format to the byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field

from gristmill.artifacts.names import DIGEST_PATTERN, NAME_PATTERN
from gristmill.artifacts.paths import path_fault
from gristmill.runtime.files import canonical_json
from gristmill.runtime.scheme import QuantScheme

__all__ = [
    "SCHEMA_VERSION",
    "BitsPerWeight",
    "Calibration",
    "Determinism",
    "Engine",
    "EngineValidation",
    "FileEntry",
    "GateResult",
    "GoldenProof",
    "KlDivergence",
    "LayerError",
    "Lineage",
    "Manifest",
    "Perplexity",
    "SchemeGroup",
    "SourceModel",
    "group_schemes",
]

SCHEMA_VERSION = 1


def _relative_path(path: str) -> str:
    if fault := path_fault(path):
        raise ValueError(f"{path!r} is {fault}")
    return path


Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Measure = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Word = Annotated[str, Field(min_length=1, max_length=512)]
Hex = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Digest = Annotated[str, Field(pattern=f"^{DIGEST_PATTERN}$")]
Name = Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")]
RelativePath = Annotated[str, AfterValidator(_relative_path)]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file: its size in bytes and the hex SHA-256 of its content."""

    size: Count
    sha256: Hex


@dataclass(frozen=True, slots=True)
class SourceModel:
    """The model that was quantized: as the recipe names it, its revision where it has one, its digest."""

    source: Word
    revision: Word | None
    digest: Digest


@dataclass(frozen=True, slots=True)
class Calibration:
    """The prompts that calibrated it: digest of the token ids, number of prompts and of tokens."""

    digest: Digest
    prompts: Count
    tokens: Count


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where an artifact comes from.

    `parent` is the digest of the artifact that it was compiled from; `recipe`
    is the digest of `recipe.yaml`; `calibration` is None for data-free methods.
    """

    base_model: SourceModel
    parent: Digest | None
    recipe: Digest
    calibration: Calibration | None


@dataclass(frozen=True, slots=True)
class SchemeGroup:
    """The linears that share one scheme, sorted; `name` is the scheme's own."""

    name: Word
    scheme: QuantScheme
    linears: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class BitsPerWeight:
    """Stored bits a weight, scales and zero points included: of quantized layers, and of all parameters."""

    quantized_layers: Measure
    whole_model: Measure


@dataclass(frozen=True, slots=True)
class GoldenProof:
    """How an engine reproduced the golden prompts. KL in nats, recorded against produced, over all rows."""

    prompts: Count
    kl_mean: Measure
    kl_max: Measure
    top1_agreement: Share
    tolerance: Measure


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that the artifact carries.

    `reference` is the checkpoint itself; others lie in `engines/<target>/`.
    """

    target: Name
    compute: Word
    kv_cache: Word
    kernels: Mapping[Word, Word]
    golden: GoldenProof | None


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Perplexity on held-out tokens: of the source model and of the artifact."""

    base: Measure
    quantized: Measure


@dataclass(frozen=True, slots=True)
class KlDivergence:
    """KL in nats a token, source model against artifact: mean and 99th percentile."""

    mean: Measure
    p99: Measure


@dataclass(frozen=True, slots=True)
class EngineValidation:
    """What validation measured on one engine. `calibration_overlap` is the share of held-out 16-grams
    that calibration saw; `tasks` maps a task to its metrics.
    """

    perplexity: Perplexity
    kl: KlDivergence
    top1_agreement: Share
    tasks: Mapping[Word, Mapping[Word, float]]
    calibration_overlap: Share


@dataclass(frozen=True, slots=True)
class GateResult:
    """One gate of the recipe, with `limit` as written there, such as `< 0.20`."""

    engine: Name
    metric: Word
    limit: Word
    value: float
    passed: bool


@dataclass(frozen=True, slots=True)
class Determinism:
    """Under what the same recipe gives the same bytes: threads, instruction-set cap, package versions."""

    threads: Annotated[int, Field(ge=1)]
    isa: Word
    versions: Mapping[Word, Word]


@dataclass(frozen=True, slots=True)
class LayerError:
    """A layer and its output error on the calibration tokens, as the quantizer reports it."""

    linear: Word
    error: Measure


@dataclass(frozen=True, slots=True)
class Manifest:
    """The whole of `manifest.json`, schema version 1. `files` excludes the manifest itself."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, title="manifest"
    )

    schema_version: Literal[1]
    name: Name
    files: Mapping[RelativePath, FileEntry]
    lineage: Lineage
    schemes: tuple[SchemeGroup, ...]
    skipped: tuple[Word, ...]
    bits_per_weight: BitsPerWeight
    base_size_bytes: Count
    engines: tuple[Engine, ...]
    validation: Mapping[Name, EngineValidation]
    gates: tuple[GateResult, ...]
    determinism: Determinism
    layer_errors: tuple[LayerError, ...]

    @property
    def scheme_of(self) -> dict[str, QuantScheme]:
        """Linear name to scheme, for every quantized linear."""
        return {linear: group.scheme for group in self.schemes for linear in group.linears}

    def size_of(self, *prefixes: str) -> int:
        """Bytes of all files whose path starts with one of `prefixes`."""
        return sum(entry.size for path, entry in self.files.items() if path.startswith(prefixes))


def group_schemes(schemes: Mapping[str, QuantScheme]) -> tuple[SchemeGroup, ...]:
    """Schemes by linear name in the manifest's compact and ordered form."""

    def order(linear: str) -> tuple[str, bytes, str]:
        scheme = schemes[linear]
        return (scheme.name, canonical_json(scheme.to_dict()), linear)

    linears = sorted(schemes, key=order)
    return tuple(
        SchemeGroup(scheme.name, scheme, tuple(group))
        for scheme, group in groupby(linears, key=schemes.__getitem__)
    )
