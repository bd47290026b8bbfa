"""The build record: what differs between two builds of the same bytes, kept beside the artifact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter

from gristmill.artifacts.reading import read_bounded
from gristmill.artifacts.strict_json import parse_canonical, to_canonical

__all__ = ["PEAK_AFTER", "BuildRecord", "StageRecord", "read_record", "record_bytes"]

PEAK_AFTER = "peak_memory_bytes_after_"
"""Key of `resources`, before a stage's name: the peak of the process by the end of the stage."""
_MAX_RECORD_BYTES = 1 << 20
Seconds = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stage of the build; `reused` if it came from the cache."""

    stage: str
    seconds: Seconds
    reused: bool


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """When, where and at what cost an artifact was built.

    `created` is UTC, `2026-11-29T20:30:00Z`; `host` and `resources` map a name
    to its value (such as `cpu`, `system`; `peak_memory_bytes`).
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    created: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z$")]
    seconds: Seconds = 0.0
    host: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)
    stages: tuple[StageRecord, ...] = ()


_ADAPTER = TypeAdapter(BuildRecord)


def record_bytes(record: BuildRecord) -> bytes:
    """The canonical bytes of a record."""
    return to_canonical(_ADAPTER, record, "build record")


def read_record(path: Path) -> BuildRecord:
    """Inverse of `record_bytes`. Raises ArtifactError if the file is missing or wrong."""
    return parse_canonical(_ADAPTER, read_bounded(path, _MAX_RECORD_BYTES), path)
