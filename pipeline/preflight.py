"""What a build finds out before it reads a weight: whatever can fail early fails here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from gristmill.calibration.samples import TokenSamples
from gristmill.pipeline.calibrate import calibrate
from gristmill.pipeline.compile.stage import require_engines
from gristmill.pipeline.disk import DiskPlan, plan_disk
from gristmill.pipeline.make import Timed
from gristmill.pipeline.model import BuildModel, open_model, stored_bits
from gristmill.pipeline.plan import MemoryPlan, largest_layer, plan_memory
from gristmill.pipeline.progress import Progress
from gristmill.pipeline.quantize.settings import quantize_settings
from gristmill.pipeline.search.budget import require_possible
from gristmill.pipeline.stages import StageCache
from gristmill.pipeline.validate.data import HeldOut, load_held_out
from gristmill.pipeline.validate.overlap import refuse_shared_records
from gristmill.pipeline.validate.recipe_tasks import recipe_tasks
from gristmill.pipeline.validate.tasks.outcome import TaskRows
from gristmill.recipes.schema import Recipe

__all__ = ["Preflight", "preflight"]


@dataclass(frozen=True, slots=True, eq=False)
class Preflight:
    """The opened model, the data, and what the build will take.

    `original` is the model as it is named, `model` the one that will be
    quantized: rotated, where the recipe says so.
    """

    original: BuildModel
    model: BuildModel
    samples: TokenSamples | None
    held_out: tuple[HeldOut, ...]
    tasks: tuple[TaskRows, ...]
    memory: MemoryPlan
    disk: DiskPlan

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values; sizes in bytes."""
        plan, schemes = self.model.plan, self.model.schemes
        stored, weights = stored_bits(plan.linears, schemes)
        names = (scheme.name if scheme else "unquantized" for scheme in schemes.values())
        samples = self.samples
        return {
            "model": {
                "architecture": plan.architecture,
                "parameters": plan.num_parameters(),
                "size": self.model.size_bytes,
                "layers": len(plan.layers),
                "largest_layer": largest_layer(plan).index,
            },
            "quantize": {
                "linears": dict(Counter(names)),
                "bits_per_weight": stored / weights if weights else None,
            },
            "calibration": None
            if samples is None
            else {"sequences": len(samples.sequences), "tokens": samples.tokens},
            "validation": [{"name": entry.name, "tokens": entry.samples.tokens} for entry in self.held_out],
            "tasks": [{"name": rows.task.name, "items": len(rows.rows)} for rows in self.tasks],
            "memory": self.memory.to_dict(),
            "disk": self.disk.to_dict(),
        }


def preflight(
    recipe: Recipe, stages: StageCache, timed: Timed, tell: Progress, memory_limit: int | None
) -> Preflight:
    """Open and check all that the recipe names, and plan the build.

    `memory_limit` is in bytes. Nothing is held against memory or disk yet.
    Raises the errors of `gristmill.runtime.errors`.
    """
    with timed("load"):
        original = open_model(recipe)
        model = original.rotated() if recipe.quantize.rotate else original
        require_engines(recipe.engines, model.plan)
        digest = original.source.digest()
    if (wanted := recipe.quantize.search) is not None:
        require_possible(model, wanted, recipe.checkpoint)
    with timed("calibrate"):
        samples, held_out, tasks = _read_data(recipe, model, digest, stages, tell)
    memory = plan_memory(
        model,
        quantize_settings(recipe, model.schemes),
        samples,
        held_out,
        len(recipe.engines),
        searches=wanted is not None or recipe.repairs,
        limit=memory_limit,
    )
    return Preflight(original, model, samples, held_out, tasks, memory, plan_disk(model, recipe))


def _read_data(
    recipe: Recipe, model: BuildModel, digest: str, stages: StageCache, tell: Progress
) -> tuple[TokenSamples | None, tuple[HeldOut, ...], tuple[TaskRows, ...]]:
    """Calibration samples and held-out windows, which share no record; the items of tasks."""
    samples = calibrate(recipe.calibration, model, digest, stages) if recipe.calibration else None
    held_out = load_held_out(recipe.validation.data, model.tokenizer) if recipe.validation else ()
    if samples is not None:
        refuse_shared_records(held_out, samples)
        for warning in samples.warnings:
            tell.note(f"calibration: {warning}")
    return samples, held_out, recipe_tasks(recipe.validation)
