"""`serve`: an OpenAI-compatible server for one or more artifacts."""

from __future__ import annotations

from typing import Annotated

import typer

from gristmill.cli.engine_options import (
    ComputeOption,
    DebugNanOption,
    EngineChoice,
    EngineOption,
    KVCacheOption,
    MaxModelLenOption,
    MemoryOption,
    ProfileOption,
    ThreadsOption,
    VerifyOption,
)
from gristmill.cli.options import JsonOption, StoreOption
from gristmill.runtime.errors import InputError
from gristmill.runtime.server.run import run_server
from gristmill.runtime.server.settings import ServerSettings

__all__ = ["serve"]


def serve(
    refs: Annotated[
        list[str], typer.Argument(metavar="REF...", help="Artifacts; model ids are their names.")
    ],
    host: Annotated[str, typer.Option("--host", help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen at; 0 takes a free one.")] = 8000,
    engine: EngineOption = None,
    compute: ComputeOption = None,
    kv_cache_dtype: KVCacheOption = "auto",
    threads: ThreadsOption = None,
    verify: VerifyOption = "quick",
    debug_nan: DebugNanOption = False,
    profile: ProfileOption = False,
    max_model_len: MaxModelLenOption = None,
    max_num_seqs: Annotated[
        int | None, typer.Option("--max-num-seqs", metavar="N", help="Requests that run at once.")
    ] = None,
    memory: MemoryOption = None,
    grace: Annotated[
        float, typer.Option("--grace", metavar="SECONDS", help="Time for running requests after a signal.")
    ] = 30.0,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve artifacts over HTTP until interrupted."""
    if not 0 <= grace < float("inf"):
        raise InputError("--grace", found=grace, expected="seconds, 0 or more")
    choice = EngineChoice(
        engine,
        compute,
        kv_cache_dtype,
        threads,
        verify,
        debug_nan,
        profile,
        max_model_len,
        memory,
        max_num_seqs,
    )
    settings = choice.settings()
    folders = [choice.folder(ref, store) for ref in refs]
    server = ServerSettings(host, port, grace_seconds=grace)
    run_server(folders, settings, server, json_ready=as_json)
