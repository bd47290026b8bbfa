"""Models under test: an artifact's engine, or any checkpoint on the reference engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gristmill.pipeline.validate.tasks.engine_model import EngineModel
from gristmill.runtime.architectures import plan_model
from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.executors.base import KVCacheConfig
from gristmill.runtime.executors.load import open_engine
from gristmill.runtime.executors.reference.executor import ReferenceExecutor
from gristmill.runtime.kv_scales import KVScales
from gristmill.runtime.llm import LLM, load_engine
from gristmill.runtime.memory import kv_bytes_per_token
from gristmill.runtime.model_plan import LinearPlan, ModelPlan
from gristmill.runtime.scheme import QuantScheme
from gristmill.runtime.settings import EngineSettings
from gristmill.runtime.sources.base import ModelSource, Tensor
from gristmill.runtime.sources.hf_folder import HfFolder
from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["engine_model", "source_model"]

_CONTEXT = 4096
_CONTEXTS_CACHED = 4
_DEFAULTS = EngineSettings(max_scored_tokens=256, itl_target_ms=1000.0)


def engine_model(folder: EngineFolder, asked: EngineSettings | None = None) -> EngineModel:
    """An engine that proves itself first, as when it serves.

    Of `asked`, number formats and threads are taken; the context is at most
    4,096 tokens. Raises the errors of `load_engine`.
    """
    asked = asked or _DEFAULTS
    formats = replace(
        _DEFAULTS, compute=asked.compute, kv_cache_dtype=asked.kv_cache_dtype, threads=asked.threads
    )
    opened = open_engine(folder)
    settings = _sized(opened.plan, opened.modes.choose(formats, folder.kv_cache)[0])
    return EngineModel(LLM(load_engine(folder, settings)), folder.name, {"weights": folder.digest})


def source_model(source: ModelSource, digest: str) -> EngineModel:
    """A checkpoint, quantized or not, on the reference engine in bfloat16. `digest` is the source's."""
    if isinstance(source, HfFolder):
        folder = EngineFolder(source.name, "reference", source.folder, source.folder, digest)
        return engine_model(folder)
    plan = plan_model(source.config)
    settings = _sized(plan, replace(_DEFAULTS, compute="bfloat16"))
    assert settings.kv_cache_bytes is not None
    block_bytes = settings.block_size * kv_bytes_per_token(plan, settings.kv_dtype)
    cache = KVCacheConfig(settings.kv_cache_bytes // block_bytes, settings.block_size, settings.kv_dtype)
    executor = ReferenceExecutor(_PlainWeights(plan, source), cache, "bfloat16")
    tokenizer = Tokenizer.from_files(source.side_files(), source.config)
    return EngineModel(LLM(LLMEngine(executor, tokenizer, settings)), source.name, {"weights": digest})


@dataclass(frozen=True, slots=True)
class _PlainWeights:
    """A `WeightSource` over a source that is not quantized."""

    plan: ModelPlan
    source: ModelSource

    @property
    def schemes(self) -> Mapping[str, QuantScheme]:
        return {}

    @property
    def kv_scales(self) -> KVScales:
        return ()

    def weight(self, linear: LinearPlan) -> Tensor:
        return self.source.load(linear.weight)

    def tensor(self, name: str) -> Tensor:
        return self.source.load(name)


def _sized(plan: ModelPlan, settings: EngineSettings) -> EngineSettings:
    """A cache of a few contexts: the same on each machine, and no more than tasks make use of."""
    context = min(_CONTEXT, plan.max_positions)
    context_blocks = -(-context // settings.block_size)
    block_bytes = settings.block_size * kv_bytes_per_token(plan, settings.kv_dtype)
    size = _CONTEXTS_CACHED * context_blocks * block_bytes
    return replace(settings, max_model_len=context, kv_cache_bytes=size)
