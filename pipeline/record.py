"""The build record: what a build took, kept beside the artifact and outside its digest."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from gristmill.artifacts.record import BuildRecord, StageRecord
from gristmill.pipeline.environment import host_record, peak_memory
from gristmill.pipeline.stages import StageCache

__all__ = ["RECIPE_FOLDER", "StageClock"]

RECIPE_FOLDER = "recipe_folder"
"""The key of a record's `host` under which a later `compile` finds the held-out data again."""


class StageClock:
    """Times the stages of one build."""

    def __init__(self, stages: StageCache) -> None:
        self._stages = stages
        self._started = time.monotonic()
        self._records: list[StageRecord] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time the body as stage `name`."""
        started = time.monotonic()
        yield
        seconds = round(time.monotonic() - started, 3)
        self._records.append(StageRecord(name, seconds, name in self._stages.reused))

    def record(self, recipe_folder: Path | None, planned_memory: int | None = None) -> BuildRecord:
        """The record of everything timed so far; `recipe_folder` is where the recipe's files lie."""
        resources = {"peak_memory_bytes": float(peak_memory())}
        if planned_memory is not None:
            resources["planned_memory_bytes"] = float(planned_memory)
        host = host_record()
        if recipe_folder is not None:
            host[RECIPE_FOLDER] = str(recipe_folder)
        return BuildRecord(
            created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            seconds=round(time.monotonic() - self._started, 3),
            host=host,
            resources=resources,
            stages=tuple(self._records),
        )
