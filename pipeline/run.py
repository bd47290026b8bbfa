"""The story of a build: from a recipe to an artifact in the store.

Every stage takes what an earlier build of the same inputs has finished, so a
build that was interrupted continues, and one that is repeated only looks.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

from gristmill.artifacts.artifact import Artifact
from gristmill.artifacts.store import Store
from gristmill.calibration.samples import TokenSamples
from gristmill.pipeline.calibrate import calibrate
from gristmill.pipeline.checkpoint import WrittenCheckpoint, write_verified
from gristmill.pipeline.compile.stage import compile_engine, require_engines
from gristmill.pipeline.environment import build_threads, determinism_contract, peak_memory, using_threads
from gristmill.pipeline.golden_prompts import golden_prompts
from gristmill.pipeline.model import BuildModel, open_model
from gristmill.pipeline.package import Built, package
from gristmill.pipeline.plan import plan_memory, require_memory
from gristmill.pipeline.progress import Progress, SilentProgress
from gristmill.pipeline.prove import Proof, prove
from gristmill.pipeline.quantize.run import QuantizedModel, quantize_key, quantize_model
from gristmill.pipeline.quantize.settings import quantize_settings
from gristmill.pipeline.record import StageClock, places_of
from gristmill.pipeline.report.evidence import LayerErrors
from gristmill.pipeline.report.mix import data_mix
from gristmill.pipeline.stages import StageCache
from gristmill.pipeline.validate.data import HeldOut, load_held_out
from gristmill.pipeline.validate.gates import GateResult, evaluate_gates, require_gates
from gristmill.pipeline.validate.original import OriginalLogits
from gristmill.pipeline.validate.overlap import refuse_shared_records
from gristmill.recipes.schema import Recipe
from gristmill.runtime.executors.load import best_engine
from gristmill.runtime.formats.select import FormatName

__all__ = ["build"]


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
        with clock.stage("load"):
            original = open_model(recipe)
            model = original.rotated() if recipe.quantize.rotate else original
            require_engines(recipe.engines, model.plan)
            digest = original.source.digest()
        with clock.stage("calibrate"):
            samples, held_out = _read_data(recipe, model, digest, stages, tell)
        settings = quantize_settings(recipe.quantize, model.schemes)
        memory = plan_memory(model, settings, samples, held_out, len(recipe.engines), memory_limit)
        tell.note(memory.line())
        require_memory(memory, memory_limit)
        with clock.stage("quantize"):
            key = quantize_key(model.source.digest(), samples, settings, contract)
            quantized = quantize_model(model, samples, settings, stages, key, tell)
        for note in quantized.notes:
            tell.note(note)
        with clock.stage("checkpoint"):
            checkpoints = _write_checkpoints(recipe, model, quantized, key, stages)
        own = checkpoints[recipe.checkpoint]
        with clock.stage("compile"):
            engines = [compile_engine(target, own, stages, tell) for target in recipe.engines]
        with clock.stage("validate"):
            proof = prove(
                own,
                engines,
                partial(OriginalLogits, original.plan, original.source),
                held_out,
                samples,
                golden_prompts(recipe, model.tokenizer, held_out),
                {"model": digest, "contract": asdict(contract)},
                stages,
                tell,
                streamed=memory.streamed,
            )
            served = best_engine([proven.engine.target for proven in proof.engines])
            results = _gate_results(recipe, proof, served)
            require_gates(results, quantized.errors)
        with clock.stage("package"):
            paths = {name: written.folder for name, written in checkpoints.items()}
            compiled = {engine.target: engine.folder for engine in engines}
            layers = LayerErrors("output" if samples else "weight", quantized.errors, quantized.notes)
            mix = data_mix(samples, [entry.samples for entry in held_out], model.tokenizer)
            built = Built(
                model,
                original.size_bytes,
                digest,
                samples,
                paths,
                compiled,
                layers,
                mix,
                proof,
                {served: results},
                contract,
            )
            artifact = package(recipe, built, store, clock.record(places_of(recipe), memory.total))
    tell.note(f"memory: {peak_memory() / 1e9:.2f} GB measured at most, {memory.total / 1e9:.2f} GB planned")
    return artifact


def _write_checkpoints(
    recipe: Recipe, model: BuildModel, quantized: QuantizedModel, key: str, stages: StageCache
) -> dict[FormatName, WrittenCheckpoint]:
    """The recipe's own checkpoint and its exports, by format."""
    write = partial(write_verified, model.source, quantized.tensors, quantized.dense, stages=stages)
    return {name: write(format=name, quantize_key=key) for name in (recipe.checkpoint, *recipe.exports)}


def _gate_results(recipe: Recipe, proof: Proof, served: str) -> tuple[GateResult, ...]:
    """The recipe's gates, held against the engine that will serve."""
    if recipe.validation is None or served not in proof.validation:
        return ()
    return evaluate_gates(recipe.validation.gates.all, proof.validation[served].metrics)


def _read_data(
    recipe: Recipe, model: BuildModel, digest: str, stages: StageCache, tell: Progress
) -> tuple[TokenSamples | None, tuple[HeldOut, ...]]:
    """Calibration samples and held-out windows, which share no record."""
    samples = calibrate(recipe.calibration, model, digest, stages) if recipe.calibration else None
    held_out = load_held_out(recipe.validation.data, model.tokenizer) if recipe.validation else ()
    if samples is not None:
        refuse_shared_records(held_out, samples)
        for warning in samples.warnings:
            tell.note(f"calibration: {warning}")
    return samples, held_out
