"""From an engine folder to its executor, by the folder's target."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import get_args

from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.errors import UnsupportedError
from gristmill.runtime.executors.base import Executor, KVCacheConfig, KVDtype
from gristmill.runtime.executors.native.engine_file import read_engine_file
from gristmill.runtime.executors.native.modes import NATIVE_MODES
from gristmill.runtime.model_plan import ModelPlan
from gristmill.runtime.settings import Compute, EngineModes, ExecutorOptions

__all__ = ["EXECUTORS", "OpenedEngine", "best_engine", "engine_fault", "open_engine"]

_PREFERENCE = ("native-x86", "reference")
_NEEDS = {"native-x86": "gristmill.runtime.kernels._native", "reference": "torch"}


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


def best_engine(targets: Iterable[str]) -> str:
    """The fastest of `targets` that this machine can run. Raises UnsupportedError with the reasons."""
    carried = [target for target in _PREFERENCE if target in set(targets)]
    faults = {target: engine_fault(target) for target in carried}
    for target, fault in faults.items():
        if fault is None:
            return target
    raise UnsupportedError(
        "no engine that this machine can run",
        found=", ".join(f"{target} ({fault})" for target, fault in faults.items()) or "none",
        expected=" or ".join(EXECUTORS),
    )


def engine_fault(target: str) -> str | None:
    """Why this machine can't run engines for `target`; None if it can."""
    if target not in EXECUTORS:
        return "not known here"
    machine = platform.machine()
    if target == "native-x86" and machine.lower() not in ("x86_64", "amd64"):
        return f"this machine is {machine}"
    if importlib.util.find_spec(_NEEDS[target]) is None:
        return f"needs {_NEEDS[target]}, which is not installed"
    return None


def _open_reference(folder: EngineFolder) -> OpenedEngine:
    # Only here: native engines have their plan and weights in files of their own.
    from gristmill.runtime.checkpoint import open_checkpoint

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
        return ReferenceExecutor(checkpoint, cache, options.compute, streamed=folder.streamed)

    modes = EngineModes("reference", ("bfloat16", "float32"), get_args(KVDtype))
    return OpenedEngine(checkpoint.plan, modes, weight_bytes, load)


def _open_native(folder: EngineFolder) -> OpenedEngine:
    engine = read_engine_file(folder.path)

    def load(cache: KVCacheConfig, options: ExecutorOptions) -> Executor:
        # Only here, so that other engines run where the extension was not built.
        from gristmill.runtime.executors.native.executor import NativeExecutor

        return NativeExecutor(engine, cache, options)

    return OpenedEngine(engine.plan, NATIVE_MODES, lambda compute: engine.bytes, load)


EXECUTORS: Mapping[str, Callable[[EngineFolder], OpenedEngine]] = MappingProxyType(
    {"native-x86": _open_native, "reference": _open_reference}
)
