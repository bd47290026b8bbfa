"""The story of a build: from a recipe to an artifact in the store.

Every stage takes what an earlier build of the same inputs has finished, so a
build that was interrupted continues, and one that is repeated only looks.
"""

from __future__ import annotations

from gristmill.artifacts.artifact import Artifact
from gristmill.artifacts.store import Store
from gristmill.pipeline.environment import build_threads, determinism_contract, peak_memory, using_threads
from gristmill.pipeline.make import Made, Maker
from gristmill.pipeline.package import Built, package
from gristmill.pipeline.plan import require_memory
from gristmill.pipeline.preflight import Preflight, preflight
from gristmill.pipeline.progress import Progress, SilentProgress
from gristmill.pipeline.record import StageClock, places_of
from gristmill.pipeline.report.evidence import LayerErrors
from gristmill.pipeline.report.mix import data_mix
from gristmill.pipeline.search.run import repair, search
from gristmill.pipeline.search.widths import WidthChoice
from gristmill.pipeline.stages import StageCache
from gristmill.pipeline.validate.gates import require_gates
from gristmill.pipeline.validate.recipe_tasks import require_resident
from gristmill.recipes.schema import Recipe

__all__ = ["build", "plan"]


def build(
    recipe: Recipe, store: Store, *, progress: Progress | None = None, memory_limit: int | None = None
) -> Artifact:
    """Run a recipe and point its tag at the artifact.

    Everything that can be known early fails early: the recipe's files, the
    model's tensors, group sizes, prompts, held-out data and memory are checked
    before a weight is read. Raises the errors of `gristmill.runtime.errors`;
    finished stages stay in the store.
    """
    store.layout.create()
    tell = progress or SilentProgress()
    contract = determinism_contract(build_threads())
    stages = StageCache(store.layout.stages)
    clock = StageClock(stages)
    with using_threads(contract.threads):
        flight = preflight(recipe, stages, clock.stage, tell, memory_limit)
        memory, model = flight.memory, flight.model
        tell.note(memory.line())
        tell.note(flight.disk.line())
        require_memory(memory, memory_limit)
        require_resident(flight.tasks, streamed=memory.streamed)
        data = (flight.samples, flight.held_out, flight.tasks)
        maker = Maker(recipe, flight.original, *data, contract, stages, tell, memory.streamed)
        widths: WidthChoice | None = None
        if recipe.quantize.search is not None:
            with clock.stage("search"):
                model, widths = search(maker, model)
        made = maker.make(model, clock.stage)
        if recipe.repairs and not made.passed:
            with clock.stage("repair"):
                made, widths = repair(maker, made)
        for note in made.quantized.notes:
            tell.note(note)
        require_gates(made.gates, made.quantized.errors)
        with clock.stage("package"):
            built = _built(maker, made, widths)
            artifact = package(recipe, built, store, clock.record(places_of(recipe), memory.total))
    tell.note(f"memory: {peak_memory() / 1e9:.2f} GB measured at most, {memory.total / 1e9:.2f} GB planned")
    return artifact


def plan(recipe: Recipe, store: Store, *, memory_limit: int | None = None) -> Preflight:
    """Check all that can be known early, as `build` does, and say what it will take.

    Raises the same errors, but not those of too little memory or disk space.
    """
    store.layout.create()
    stages = StageCache(store.layout.stages)
    return preflight(recipe, stages, StageClock(stages).stage, SilentProgress(), memory_limit)


def _built(maker: Maker, made: Made, widths: WidthChoice | None) -> Built:
    """What the artifact is packaged from; `widths` is None where the recipe alone decided them."""
    samples, quantized = maker.samples, made.quantized
    return Built(
        model=made.model,
        original=maker.original,
        samples=samples,
        checkpoints={name: written.folder for name, written in made.checkpoints.items()},
        engines={engine.target: engine.folder for engine in made.engines},
        layers=LayerErrors("output" if samples else "weight", quantized.errors, quantized.notes),
        coverage=quantized.coverage,
        widths=widths,
        mix=data_mix(samples, [entry.samples for entry in maker.held_out], made.model.tokenizer),
        proof=made.proof,
        gates={made.served: made.gates},
        determinism=maker.contract,
    )
