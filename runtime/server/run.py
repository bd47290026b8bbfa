"""Run the server: bind, load, announce, serve, drain."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager

import uvicorn
from starlette.applications import Starlette

from gristmill.runtime.async_engine import AsyncEngine
from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.errors import EXIT_INTERRUPTED, InputError, ListenError
from gristmill.runtime.llm import load_engine
from gristmill.runtime.memory import FreeMemory, free_memory
from gristmill.runtime.server.app import create_app
from gristmill.runtime.server.metrics import Metrics, ModelMetrics
from gristmill.runtime.server.models import ServedModel
from gristmill.runtime.settings import EngineSettings

__all__ = ["bind", "run_server", "serve_engines"]

_MAX_PORT = 65535
_BACKLOG = 2048
_SHUTDOWN_MARGIN_SECONDS = 5
_KEEP_ALIVE_SECONDS = 75


def run_server(
    engine_folders: Sequence[EngineFolder],
    host: str = "127.0.0.1",
    port: int = 8000,
    settings: EngineSettings | None = None,
    *,
    grace_seconds: float = 30.0,
    json_ready: bool = False,
) -> None:
    """Load the models and serve them until SIGINT or SIGTERM; call it from the main thread.

    The address is taken before anything is loaded; port 0 takes a free one. The
    plan goes to stderr, one ready line with the URL to stdout (with
    `json_ready` as an object of models and url). The first signal
    lets running requests finish within `grace_seconds`, the second ends the
    process at once with exit code 130. Raises InputError, ListenError, and
    what `load_engine` raises.
    """
    names = [folder.name for folder in engine_folders]
    if not names or len(set(names)) < len(names):
        raise InputError(
            "models to serve", found=", ".join(names) or "none", expected="one or more, each name once"
        )
    with closing(bind(host, port)) as listener:
        engines = _load_all(engine_folders, settings)
        ready = _ready_line(names, _url(listener), as_json=json_ready)
        asyncio.run(_serve_until_signalled(engines, listener, grace_seconds, ready))
    for name, engine in engines.items():
        for line in engine.profile_lines():
            _report(f"{name}: {line}")


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address, not yet listening. Raises InputError for no port, ListenError."""
    if not 0 <= port <= _MAX_PORT:
        raise InputError("the port is invalid", found=port, expected=f"0 to {_MAX_PORT}, 0 for any free one")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ListenError(f"can't resolve the host {host!r}", found=error.strerror) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


async def serve_engines(
    engines: Mapping[str, LLMEngine],
    listener: socket.socket,
    stop: asyncio.Event,
    *,
    on_ready: Callable[[], None],
    grace_seconds: float,
) -> None:
    """Serve until `stop` is set, let running requests finish, abort the rest after `grace_seconds`.

    Takes engines and listener over and closes them. Raises ListenError if the
    address was taken in the meantime.
    """
    metrics = Metrics()
    created = int(time.time())
    models = {
        name: ServedModel(name, AsyncEngine(engine, ModelMetrics(metrics, name)), created)
        for name, engine in engines.items()
    }
    try:
        _listen(listener)
        await _serve_app(
            create_app(models, metrics),
            listener,
            stop,
            on_ready=on_ready,
            on_grace_over=lambda: _abort_all(models),
            grace_seconds=grace_seconds,
        )
    finally:
        for model in models.values():
            await model.engine.close()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which would end the process with the signal's exit code."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals to `run_server`."""
        yield


async def _serve_app(
    app: Starlette,
    listener: socket.socket,
    stop: asyncio.Event,
    *,
    on_ready: Callable[[], None],
    on_grace_over: Callable[[], None],
    grace_seconds: float,
) -> None:
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(grace_seconds) + _SHUTDOWN_MARGIN_SECONDS,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not (server.started or serving.done()):
        await asyncio.sleep(0.005)
    if server.started:
        on_ready()
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        server.should_exit = True
        done, _ = await asyncio.wait({serving}, timeout=grace_seconds)
        if not done:
            on_grace_over()
    await serving


async def _serve_until_signalled(
    engines: Mapping[str, LLMEngine], listener: socket.socket, grace_seconds: float, ready: str
) -> None:
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            sys.stderr.write("stopped at once\n")
            sys.stderr.flush()
            os._exit(EXIT_INTERRUPTED)  # a step of the engine can't be interrupted in any gentler way
        sys.stderr.write(f"finishing running requests for up to {grace_seconds:g} s; again to stop at once\n")
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    await serve_engines(
        engines,
        listener,
        stop,
        on_ready=lambda: print(ready, flush=True),
        grace_seconds=grace_seconds,
    )


def _abort_all(models: Mapping[str, ServedModel]) -> None:
    for model in models.values():
        model.engine.abort()


def _load_all(folders: Sequence[EngineFolder], settings: EngineSettings | None) -> dict[str, LLMEngine]:
    """Load each model within an equal share of memory: caches take theirs only as they fill."""
    free = free_memory()
    if len(folders) > 1:
        free = FreeMemory(free.size // len(folders), f"{free.source}, shared by {len(folders)} models")
    engines: dict[str, LLMEngine] = {}
    try:
        for folder in folders:
            engines[folder.name] = load_engine(folder, settings, free=free, report=_report)
    except BaseException:
        for engine in engines.values():
            engine.close()
        raise
    return engines


def _report(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _listen(listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error


def _cannot_listen(host: str, port: int, error: OSError) -> ListenError:
    return ListenError(
        f"can't listen at {host}:{port}",
        found=error.strerror,
        hint="choose another --port, or 0 for a free one",
    )


def _ready_line(names: Sequence[str], url: str, *, as_json: bool) -> str:
    if as_json:
        return json.dumps({"status": "ready", "models": list(names), "url": url})
    return f"serving {', '.join(names)} at {url} (ready)"


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"
