"""The build record: what a build took, kept beside the artifact and outside its digest."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

from gristmill.artifacts.record import PEAK_AFTER, BuildRecord, StageRecord
from gristmill.pipeline.environment import host_record, peak_memory
from gristmill.pipeline.stages import StageCache
from gristmill.recipes.schema import Recipe

__all__ = ["MODEL_PATH", "RECIPE_FOLDER", "StageClock", "places_of"]

RECIPE_FOLDER = "recipe_folder"
MODEL_PATH = "model_path"
"""Keys of a record's `host`, where a later `compile` finds the held-out data and a local model again."""


def places_of(recipe: Recipe) -> dict[str, str]:
    """Where the files of a recipe lie on this machine, which its resolved form leaves out."""
    places = {RECIPE_FOLDER: str(recipe.base)}
    model = recipe.base / os.path.expanduser(recipe.model)
    if not recipe.model.startswith("package:") and os.path.exists(model):
        places[MODEL_PATH] = str(model.resolve())
    return places


class StageClock:
    """Times the stages of one build."""

    def __init__(self, stages: StageCache) -> None:
        self._stages = stages
        self._started = time.monotonic()
        self._records: list[StageRecord] = []
        self._peaks: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time the body as stage `name`."""
        started = time.monotonic()
        yield
        seconds = round(time.monotonic() - started, 3)
        self._records.append(StageRecord(name, seconds, name in self._stages.reused))
        self._peaks[f"{PEAK_AFTER}{name}"] = float(peak_memory())

    def record(self, places: Mapping[str, str], planned_memory: int | None = None) -> BuildRecord:
        """The record of everything timed so far; `places` says where the recipe's files lie."""
        resources = {"peak_memory_bytes": float(peak_memory()), **self._peaks}
        if planned_memory is not None:
            resources["planned_memory_bytes"] = float(planned_memory)
        return BuildRecord(
            created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            seconds=round(time.monotonic() - self._started, 3),
            host={**host_record(), **places},
            resources=resources,
            stages=tuple(self._records),
        )
