"""Options of every command that loads an engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from gristmill import facade
from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.errors import InputError
from gristmill.runtime.executors.base import KVDtype
from gristmill.runtime.settings import Compute, EngineSettings
from gristmill.runtime.units import parse_size

__all__ = [
    "ComputeOption",
    "DebugNanOption",
    "EngineChoice",
    "EngineOption",
    "KVCacheOption",
    "MaxModelLenOption",
    "MemoryOption",
    "ProfileOption",
    "RefArgument",
    "ThreadsOption",
    "VerifyOption",
    "require",
]

_AUTO = "auto"

RefArgument = Annotated[
    str, typer.Argument(metavar="REF", help="name, name:tag, name@sha256:... or a folder.")
]
EngineOption = Annotated[
    str | None,
    typer.Option("--engine", metavar="T", help="The artifact's engine; else the fastest that runs here."),
]
ComputeOption = Annotated[
    str | None,
    typer.Option("--compute", metavar="TYPE", help="int8, bfloat16 or float32; each engine has its own."),
]
KVCacheOption = Annotated[
    str,
    typer.Option(
        "--kv-cache-dtype",
        metavar="TYPE",
        help="auto (the recipe's), bfloat16, float16, float32, fp8, int8 or int4.",
    ),
]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", metavar="N", help="Threads of the native engine.")
]
VerifyOption = Annotated[
    str, typer.Option("--verify", metavar="HOW", help="quick, or full: all bytes and golden prompts.")
]
DebugNanOption = Annotated[bool, typer.Option("--debug-nan", help="Name the layer where a NaN appears.")]
ProfileOption = Annotated[bool, typer.Option("--profile", help="Measure each operation of a step.")]
MaxModelLenOption = Annotated[
    int | None, typer.Option("--max-model-len", metavar="N", help="Tokens of one request, prompt and answer.")
]
MemoryOption = Annotated[
    str | None, typer.Option("--memory", metavar="SIZE", help="Most memory to use, such as 4GiB.")
]


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """What the command line says of an engine. Raises InputError for values that no engine has."""

    engine: str | None = None
    compute: str | None = None
    kv_cache_dtype: str = _AUTO
    threads: int | None = None
    verify: str = "quick"
    debug_nan: bool = False
    profile: bool = False
    max_model_len: int | None = None
    memory: str | None = None

    def __post_init__(self) -> None:
        require("--compute", self.compute, get_args(Compute))
        require("--kv-cache-dtype", self.kv_cache_dtype, (_AUTO, *get_args(KVDtype)))
        require("--verify", self.verify, ("quick", "full"))

    def folder(self, ref: str, store: Path | None) -> EngineFolder:
        """The engine of an artifact, its files checked against the manifest."""
        return facade.engine_folder(ref, store=store, engine=self.engine, full=self.verify == "full")

    def settings(self) -> EngineSettings:
        """Settings for the runtime; what is not given keeps its default. Raises InputError."""
        automatic = self.kv_cache_dtype == _AUTO
        return EngineSettings(
            compute=cast(Compute | None, self.compute),
            kv_cache_dtype=None if automatic else cast(KVDtype, self.kv_cache_dtype),
            max_model_len=self.max_model_len,
            memory_bytes=None if self.memory is None else parse_size(self.memory),
            golden_full=self.verify == "full",
            threads=self.threads,
            debug_nan=self.debug_nan,
            profile=self.profile,
        )


def require(option: str, value: str | None, known: tuple[str, ...]) -> None:
    """Raise InputError for a value that is not one of those known; None is always fine."""
    if value is not None and value not in known:
        raise InputError(option, found=value, expected=" or ".join(known))
