"""The server as a process: take the address, load, announce, serve until a signal."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import psutil

from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.errors import EXIT_INTERRUPTED, InputError
from gristmill.runtime.llm import load_engine
from gristmill.runtime.machine import cpu_limits, oversubscription
from gristmill.runtime.memory import FreeMemory, MemoryPlan, free_memory
from gristmill.runtime.server.listen import bind, url_of
from gristmill.runtime.server.logs import logging_to_stderr
from gristmill.runtime.server.memory_watch import choose_marks
from gristmill.runtime.server.models import LoadedModel
from gristmill.runtime.server.service import serve_models
from gristmill.runtime.server.settings import ServerSettings
from gristmill.runtime.settings import EngineSettings

__all__ = ["Resolver", "run_server"]

_logger = logging.getLogger(__name__)

Report = Callable[[str], None]


class Resolver(Protocol):
    """From a served model's name to the verified folder that the name means now."""

    def __call__(self, name: str) -> EngineFolder: ...


def run_server(
    engine_folders: Sequence[EngineFolder],
    settings: EngineSettings | None = None,
    server: ServerSettings | None = None,
    *,
    resolve: Resolver | None = None,
    json_ready: bool = False,
) -> None:
    """Load the models and serve them until SIGINT or SIGTERM; call it from the main thread.

    The address is taken before anything is loaded. The plan and the log go to
    stderr, one ready line with the URL to stdout (with `json_ready` as an object
    of models and url). The first signal lets running requests finish within the grace
    period, the second, or one while models load, ends the process at once with exit
    code 130. `resolve` makes reloading possible. Raises InputError, and what
    `serve_models` and `load_engine` raise.
    """
    settings, server = settings or EngineSettings(), server or ServerSettings()
    names = [folder.name for folder in engine_folders]
    if not names or len(set(names)) < len(names):
        raise InputError(
            "models to serve", found=", ".join(names) or "none", expected="one or more, each name once"
        )
    report = _log if server.log_format == "json" else _say
    engines: dict[str, LLMEngine] = {}

    def load(tell: Report) -> list[LoadedModel]:
        loaded = _load_all(engine_folders, settings, report, tell)
        engines.update({model.name: model.engine for model in loaded})
        return loaded

    with (
        closing(bind(server.host, server.port)) as listener,
        logging_to_stderr(server.log_format, server.log_level),
    ):
        if warning := oversubscription(settings.threads, cpu_limits()):
            report(warning)
        ready = _ready_line(names, url_of(listener), as_json=json_ready)
        marks = choose_marks(server.memory_soft, server.memory_restart, settings.memory_bytes)
        reload = None if resolve is None else partial(_load_again, resolve, settings, report)
        asyncio.run(
            _until_signalled(
                ready,
                report,
                lambda stop, on_ready: serve_models(
                    load, listener, stop, server, on_ready=on_ready, reload=reload, marks=marks
                ),
                server.grace_seconds,
            )
        )
        for name, engine in engines.items():
            for line in engine.profile_lines():
                report(f"{name}: {line}")


async def _until_signalled(
    ready: str,
    report: Report,
    serve: Callable[[asyncio.Event, Callable[[], None]], Coroutine[Any, Any, None]],
    grace_seconds: float,
) -> None:
    """Run `serve`, and let the first signal stop it and the second end the process."""
    stop, is_ready = asyncio.Event(), asyncio.Event()

    def on_ready() -> None:
        is_ready.set()
        print(ready, flush=True)

    def on_signal() -> None:
        if stop.is_set() or not is_ready.is_set():
            sys.stderr.write("stopped at once\n")
            sys.stderr.flush()
            os._exit(EXIT_INTERRUPTED)  # neither a step nor a load can be interrupted in any gentler way
        report(f"finishing running requests for up to {grace_seconds:g} s; again to stop at once")
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    await serve(stop, on_ready)


def _load_all(
    folders: Sequence[EngineFolder], settings: EngineSettings, report: Report, tell: Report
) -> list[LoadedModel]:
    """Load each model within an equal share of memory: caches take theirs only as they fill."""
    free = free_memory()
    if len(folders) > 1:
        free = FreeMemory(free.size // len(folders), f"{free.source}, shared by {len(folders)} models")
    loaded: list[LoadedModel] = []
    try:
        for number, folder in enumerate(folders, 1):
            tell(f"loading {folder.name} ({number} of {len(folders)})")
            loaded.append(_load(folder, settings, free, report))
    except BaseException:
        for model in loaded:
            model.engine.close()
        raise
    return loaded


def _load_again(resolve: Resolver, settings: EngineSettings, report: Report, name: str) -> LoadedModel:
    """What the name means now, loaded beside what it meant, within the memory that is left."""
    folder = resolve(name)
    free = free_memory()
    if settings.memory_bytes is not None:
        left = max(0, settings.memory_bytes - psutil.Process().memory_info().rss)
        if left < free.size:
            free = FreeMemory(left, "left of your limit beside the models that serve")
    return _load(replace(folder, name=name), settings, free, report)


def _load(folder: EngineFolder, settings: EngineSettings, free: FreeMemory, report: Report) -> LoadedModel:
    plans: list[MemoryPlan] = []
    engine = load_engine(folder, settings, free=free, report=report, on_plan=plans.append)
    return LoadedModel(folder.name, engine, plans[0], folder.digest)


def _say(line: str) -> None:
    with suppress(OSError):  # a log on a full disk must not keep a server from starting or draining
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def _log(line: str) -> None:
    _logger.info("%s", line)


def _ready_line(names: Sequence[str], url: str, *, as_json: bool) -> str:
    if as_json:
        return json.dumps({"status": "ready", "models": list(names), "url": url})
    return f"serving {', '.join(names)} at {url} (ready)"
