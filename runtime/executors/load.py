"""From an engine folder to its executor, by the folder's target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gristmill.runtime.checkpoint import open_checkpoint
from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.errors import UnsupportedError
from gristmill.runtime.executors.base import Executor, KVCacheConfig
from gristmill.runtime.model_plan import ModelPlan
from gristmill.runtime.settings import Compute, EngineModes, ExecutorOptions

__all__ = ["EXECUTORS", "OpenedEngine", "open_engine"]


@dataclass(frozen=True, slots=True)
class OpenedEngine:
    """A folder that was checked but not loaded: what sizing needs, and the way on.

    `modes` is what it can be asked for; `weight_bytes` the memory that the weights take in a compute format.
    """

    plan: ModelPlan
    modes: EngineModes
    weight_bytes: Callable[[Compute], int]
    load: Callable[[KVCacheConfig, ExecutorOptions], Executor]


def open_engine(folder: EngineFolder) -> OpenedEngine:
    """Open a folder for its target. Raises UnsupportedError for a target that nothing here executes."""
    opener = EXECUTORS.get(folder.target)
    if opener is None:
        raise UnsupportedError(
            f"no executor for target {folder.target!r}", expected=" or ".join(sorted(EXECUTORS))
        )
    return opener(folder)


def _open_reference(folder: EngineFolder) -> OpenedEngine:
    checkpoint = open_checkpoint(folder.path)

    def weight_bytes(compute: Compute) -> int:
        return checkpoint.plan.num_parameters() * (4 if compute == "float32" else 2)

    def load(cache: KVCacheConfig, options: ExecutorOptions) -> Executor:
        try:  # torch is an extra: serving with other executors does without
            from gristmill.runtime.executors.reference.executor import ReferenceExecutor
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise UnsupportedError(
                "the reference engine needs torch", hint='install it with: pip install "gristmill[build]"'
            ) from error
        return ReferenceExecutor(checkpoint, cache, options.compute)

    modes = EngineModes("reference", ("bfloat16", "float32"), ("float32", "bfloat16", "float16"))
    return OpenedEngine(checkpoint.plan, modes, weight_bytes, load)


EXECUTORS: Mapping[str, Callable[[EngineFolder], OpenedEngine]] = MappingProxyType(
    {"reference": _open_reference}
)
