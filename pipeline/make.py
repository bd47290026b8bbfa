"""From a model with settled schemes to engines that were measured: what a repair does again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial

from gristmill.artifacts.engines import own_kv_cache
from gristmill.artifacts.manifest import Determinism
from gristmill.calibration.samples import TokenSamples
from gristmill.pipeline.checkpoint import WrittenCheckpoint, write_verified
from gristmill.pipeline.compile.stage import CompiledEngine, compile_engine
from gristmill.pipeline.disk import plan_disk, require_disk
from gristmill.pipeline.golden_prompts import golden_prompts
from gristmill.pipeline.kv_calibration import calibrate_kv
from gristmill.pipeline.model import BuildModel
from gristmill.pipeline.progress import Progress
from gristmill.pipeline.prove import Proof, prove
from gristmill.pipeline.prove_tasks import prove_tasks
from gristmill.pipeline.quantize.run import QuantizedModel, quantize_key, quantize_model
from gristmill.pipeline.quantize.settings import quantize_settings
from gristmill.pipeline.stages import StageCache
from gristmill.pipeline.validate.data import HeldOut
from gristmill.pipeline.validate.gates import GateResult, evaluate_gates
from gristmill.pipeline.validate.original import OriginalLogits
from gristmill.pipeline.validate.recipe_tasks import task_gates
from gristmill.pipeline.validate.tasks.open_model import source_model
from gristmill.pipeline.validate.tasks.outcome import TaskRows
from gristmill.recipes.schema import Recipe
from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.executors.load import best_engine
from gristmill.runtime.formats.select import FormatName
from gristmill.runtime.kv_scales import KVScales

__all__ = ["Made", "Maker", "Timed"]

Timed = Callable[[str], AbstractContextManager[None]]
"""Times its body as the stage of a name."""


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """A model as quantized, written, compiled and measured; `gates` are held against the engine `served`."""

    model: BuildModel
    quantized: QuantizedModel
    checkpoints: Mapping[FormatName, WrittenCheckpoint]
    engines: Sequence[CompiledEngine]
    proof: Proof
    served: str
    gates: tuple[GateResult, ...]

    @property
    def passed(self) -> bool:
        """Whether every gate holds."""
        return all(result.passed for result in self.gates)


@dataclass(frozen=True, slots=True, eq=False)
class Maker:
    """What stays the same however often a build makes its model.

    `original` is what it is measured against, with its weights `streamed` where they would not fit.
    """

    recipe: Recipe
    original: BuildModel
    samples: TokenSamples | None
    held_out: Sequence[HeldOut]
    tasks: Sequence[TaskRows]
    contract: Determinism
    stages: StageCache
    progress: Progress
    streamed: bool = False

    def make(self, model: BuildModel, timed: Timed, earlier: QuantizedModel | None = None) -> Made:
        """Quantize, write, compile and measure `model`; finished stages are taken as they are.

        `earlier` is the same model to other schemes, whose first layers are used as far as they agree.
        """
        recipe, stages, tell = self.recipe, self.stages, self.progress
        settings = quantize_settings(recipe, model.schemes)
        with timed("quantize"):
            key = quantize_key(model.source.digest(), self.samples, settings, self.contract)
            require_disk(stages.missing("quantize", key, plan_disk(model, recipe).total), stages.root)
            quantized = quantize_model(model, self.samples, settings, stages, key, tell, earlier)
        with timed("checkpoint"):
            kv_scales = self._kv_scales(model, quantized, key)
            checkpoints = self._write_checkpoints(model, quantized, kv_scales, key)
        own = checkpoints[recipe.checkpoint]
        with timed("compile"):
            engines = [compile_engine(target, own, stages, tell) for target in recipe.engines]
        with timed("validate"):
            proof = prove(
                own,
                engines,
                partial(OriginalLogits, self.original.plan, self.original.source),
                self.held_out,
                self.samples,
                golden_prompts(recipe, model.tokenizer, self.held_out),
                {"model": self.original.source.digest(), "contract": asdict(self.contract)},
                stages,
                tell,
                kv_cache=recipe.kv_cache.dtype,
                streamed=self.streamed,
            )
            served = best_engine([proven.engine.target for proven in proof.engines])
            folders = {engine.target: engine.folder for engine in engines}
            path, kv_cache = folders.get(served, own.folder), own_kv_cache(recipe.kv_cache.dtype)
            engine = EngineFolder("engine", served, path, own.folder, kv_cache=kv_cache)
            source = self.original.source
            original = partial(source_model, source, source.digest())
            proof = prove_tasks(proof, engine, original, self.tasks, stages, tell)
        gates = self._gates(proof, served)
        return Made(model, quantized, checkpoints, engines, proof, served, gates)

    def _kv_scales(self, model: BuildModel, quantized: QuantizedModel, key: str) -> KVScales:
        """The scales of an FP8 cache; nothing for formats that store none."""
        share = self.recipe.kv_cache.scales
        if share is None:
            return ()
        assert self.samples is not None, "the recipe has a calibration block"
        if share == "head":
            self.progress.note(
                "kv_cache: engines that hold one scale a tensor refuse a checkpoint with one a head"
            )
        return calibrate_kv(
            model,
            quantized,
            self.samples,
            share,
            quantize_key=key,
            stages=self.stages,
            progress=self.progress,
        )

    def _write_checkpoints(
        self, model: BuildModel, quantized: QuantizedModel, kv_scales: KVScales, key: str
    ) -> dict[FormatName, WrittenCheckpoint]:
        """The recipe's own checkpoint and its exports, by format."""
        content = (model.source, quantized.tensors, quantized.dense)
        write = partial(write_verified, *content, kv_scales=kv_scales, stages=self.stages)
        formats = (self.recipe.checkpoint, *self.recipe.exports)
        return {name: write(format=name, quantize_key=key) for name in formats}

    def _gates(self, proof: Proof, served: str) -> tuple[GateResult, ...]:
        """The recipe's gates, held against the engine that will serve."""
        if self.recipe.validation is None or served not in proof.validation:
            return ()
        result = proof.validation[served]
        gates = evaluate_gates(self.recipe.validation.gates.all, result.metrics)
        return (*gates, *task_gates(self.recipe.validation, result.tasks))
