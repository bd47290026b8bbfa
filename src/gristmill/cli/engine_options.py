"""Options of every command that loads an engine."""

from __future__ import annotations

from typing import Annotated, cast, get_args

import typer

from gristmill.artifacts.engines import open_engine
from gristmill.artifacts.store import Store
from gristmill.cli.build import parse_size
from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.errors import InputError
from gristmill.runtime.settings import Compute, EngineSettings

__all__ = [
    "ComputeOption",
    "MaxModelLenOption",
    "MemoryOption",
    "RefArgument",
    "engine_folder",
    "engine_settings",
]

RefArgument = Annotated[
    str, typer.Argument(metavar="REF", help="name, name:tag, name@sha256:... or a folder.")
]
ComputeOption = Annotated[
    str | None,
    typer.Option("--compute", metavar="TYPE", help="Number format: bfloat16 (default) or float32."),
]
MaxModelLenOption = Annotated[
    int | None, typer.Option("--max-model-len", metavar="N", help="Tokens of one request, prompt and answer.")
]
MemoryOption = Annotated[
    str | None, typer.Option("--memory", metavar="SIZE", help="Most memory to use, such as 4GiB.")
]


def engine_folder(store: Store, ref: str) -> EngineFolder:
    """The reference engine of an artifact, its files checked against the manifest."""
    return open_engine(store.resolve(ref))


def engine_settings(
    compute: str | None, max_model_len: int | None, memory: str | None, max_num_seqs: int | None = None
) -> EngineSettings:
    """Settings from the command line; what is not given keeps its default. Raises InputError."""
    if compute is not None and compute not in get_args(Compute):
        raise InputError("--compute", found=compute, expected=" or ".join(get_args(Compute)))
    defaults = EngineSettings()
    return EngineSettings(
        compute=cast(Compute, compute) if compute else None,
        max_model_len=max_model_len,
        max_num_seqs=defaults.max_num_seqs if max_num_seqs is None else max_num_seqs,
        memory_bytes=None if memory is None else parse_size(memory),
    )
