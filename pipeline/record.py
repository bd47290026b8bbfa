"""The build record: what a build took, kept beside the artifact and outside its digest."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from gristmill.artifacts.record import BuildRecord, StageRecord
from gristmill.pipeline.environment import host_record, peak_memory
from gristmill.pipeline.stages import StageCache

__all__ = ["StageClock"]


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

    def record(self, planned_memory: int) -> BuildRecord:
        """The record of everything timed so far."""
        return BuildRecord(
            created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            seconds=round(time.monotonic() - self._started, 3),
            host=host_record(),
            resources={
                "peak_memory_bytes": float(peak_memory()),
                "planned_memory_bytes": float(planned_memory),
            },
            stages=tuple(self._records),
        )
