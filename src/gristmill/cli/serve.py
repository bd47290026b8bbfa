"""`serve`: an OpenAI-compatible server for one or more artifacts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

from gristmill.cli.config_file import ConfigOption
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
    require,
)
from gristmill.cli.options import JsonOption, StoreOption
from gristmill.cli.serve_options import (
    AdminTokenOption,
    ApiKeyFileOption,
    ApiKeyOption,
    BlockSizeOption,
    CorsOriginOption,
    GraceOption,
    HostOption,
    ItlTargetOption,
    KVCacheMemoryOption,
    LogFormatOption,
    LogLevelOption,
    MaxNumBatchedTokensOption,
    MaxNumSeqsOption,
    MaxOpenPerKeyOption,
    MaxWaitingOption,
    MaxWaitingTokensOption,
    MemoryRestartOption,
    MemorySoftOption,
    NoPrefixCachingOption,
    PingIntervalOption,
    PortOption,
    RefsArgument,
    ServedModelNameOption,
    StallOption,
)
from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.errors import InputError
from gristmill.runtime.server.keys import ApiKey, parse_api_key, read_api_keys
from gristmill.runtime.server.logs import LogFormat, LogLevel
from gristmill.runtime.server.run import run_server
from gristmill.runtime.server.settings import ServerSettings
from gristmill.runtime.units import parse_size

__all__ = ["serve"]


def serve(
    refs: RefsArgument,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    served_model_name: ServedModelNameOption = None,
    config: ConfigOption = None,
    engine: EngineOption = None,
    compute: ComputeOption = None,
    kv_cache_dtype: KVCacheOption = "auto",
    threads: ThreadsOption = None,
    verify: VerifyOption = "quick",
    debug_nan: DebugNanOption = False,
    profile: ProfileOption = False,
    max_model_len: MaxModelLenOption = None,
    max_num_seqs: MaxNumSeqsOption = None,
    max_num_batched_tokens: MaxNumBatchedTokensOption = None,
    itl_target: ItlTargetOption = None,
    no_prefix_caching: NoPrefixCachingOption = False,
    max_waiting: MaxWaitingOption = None,
    max_waiting_tokens: MaxWaitingTokensOption = None,
    block_size: BlockSizeOption = None,
    kv_cache_memory: KVCacheMemoryOption = None,
    memory: MemoryOption = None,
    memory_soft: MemorySoftOption = None,
    memory_restart: MemoryRestartOption = None,
    api_key: ApiKeyOption = None,
    api_key_file: ApiKeyFileOption = None,
    admin_token: AdminTokenOption = None,
    max_open_per_key: MaxOpenPerKeyOption = None,
    cors_origin: CorsOriginOption = None,
    grace: GraceOption = 30.0,
    ping_interval: PingIntervalOption = 10.0,
    stall: StallOption = 30.0,
    log_format: LogFormatOption = "text",
    log_level: LogLevelOption = "info",
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve artifacts over HTTP until interrupted."""
    require("--log-format", log_format, get_args(LogFormat))
    require("--log-level", log_level, get_args(LogLevel))
    choice = EngineChoice(
        engine, compute, kv_cache_dtype, threads, verify, debug_nan, profile, max_model_len, memory
    )
    given = _given(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        itl_target_ms=itl_target,
        max_waiting=max_waiting,
        max_waiting_tokens=max_waiting_tokens,
        block_size=block_size,
        kv_cache_bytes=_size("--kv-cache-memory", kv_cache_memory),
    )
    settings = replace(choice.settings(), prefix_caching=not no_prefix_caching, **given)
    server = ServerSettings(
        host,
        port,
        grace_seconds=grace,
        ping_seconds=ping_interval,
        stall_seconds=stall,
        api_keys=_api_keys(api_key or (), api_key_file),
        admin_token=admin_token,
        max_open_per_tenant=max_open_per_key,
        cors_origins=tuple(cors_origin or ()),
        memory_soft=_size("--memory-soft", memory_soft),
        memory_restart=_size("--memory-restart", memory_restart),
        log_format=cast(LogFormat, log_format),
        log_level=cast(LogLevel, log_level),
    )
    folders = _named([choice.folder(ref, store) for ref in refs], served_model_name)
    by_name = {folder.name: ref for folder, ref in zip(folders, refs, strict=True)}

    def resolve(name: str) -> EngineFolder:
        return choice.folder(by_name[name], store)

    run_server(folders, settings, server, resolve=resolve, json_ready=as_json)


def _named(folders: Sequence[EngineFolder], names: Sequence[str] | None) -> Sequence[EngineFolder]:
    """The folders under the ids that clients name; by default their artifacts' names."""
    if not names:
        return folders
    if len(names) != len(folders) or not all(names):
        found = " ".join(f"{name!r}" for name in names)
        raise InputError("--served-model-name", found=found, expected=f"{len(folders)}, one for each REF")
    return [replace(folder, name=name) for folder, name in zip(folders, names, strict=True)]


def _given(**values: Any) -> dict[str, Any]:
    """What is not left to its default."""
    return {name: value for name, value in values.items() if value is not None}


def _size(option: str, text: str | None) -> int | None:
    return None if text is None else parse_size(text, option)


def _api_keys(keys: Sequence[str], file: Path | None) -> tuple[ApiKey, ...]:
    listed = [parse_api_key(key) for key in keys]
    return (*listed, *(read_api_keys(file) if file is not None else ()))
