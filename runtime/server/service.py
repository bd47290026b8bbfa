"""One server's parts, and its life on the event loop: load, serve, drain, close."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from gristmill.runtime.async_engine import AsyncEngine
from gristmill.runtime.errors import OutsideError, RequestError
from gristmill.runtime.server.admin import admin_routes
from gristmill.runtime.server.admission import Admission, OpenRequests
from gristmill.runtime.server.app import build_forms, create_app
from gristmill.runtime.server.auth import Authentication
from gristmill.runtime.server.connections import accept_connections
from gristmill.runtime.server.cors import allow_origins
from gristmill.runtime.server.health import health_routes
from gristmill.runtime.server.keys import Keyring
from gristmill.runtime.server.lifecycle import Lifecycle
from gristmill.runtime.server.listen import listen
from gristmill.runtime.server.memory_watch import MemoryMarks, watch_memory
from gristmill.runtime.server.metrics import Metrics
from gristmill.runtime.server.models import LoadedModel, ServedModel
from gristmill.runtime.server.observer import ModelObserver
from gristmill.runtime.server.prefix_watch import PrefixWatch
from gristmill.runtime.server.reload import Reloader
from gristmill.runtime.server.request_log import RequestLog
from gristmill.runtime.server.settings import ServerSettings

__all__ = ["Load", "serve_models"]

# Loads and proves all models, in a thread, and tells what it is about to do.
Load = Callable[[Callable[[str], None]], Iterable[LoadedModel]]

_ABORT_SECONDS = 5.0  # for what the grace period did not suffice for, to learn that it has ended
_CLOSE_SECONDS = 5.0
_CONNECTION_SECONDS = 1
_KEEP_ALIVE_SECONDS = 75
_POLL_SECONDS = 0.002


async def serve_models(
    load: Load,
    listener: socket.socket,
    stop: asyncio.Event,
    settings: ServerSettings,
    *,
    on_ready: Callable[[], None],
    reload: Callable[[str], LoadedModel] | None = None,
    marks: MemoryMarks | None = None,
) -> None:
    """Load models and serve them until `stop` is set, then drain; takes the listener over and closes it.

    The address answers from the start: /health and /ready tell that models load.
    Raises what `load` raises, ListenError, OutsideError above the restart mark of `marks`, and
    InternalError for an engine that does not end.
    """
    service = _Service(settings, reload)
    listen(listener)
    server = _uvicorn_server(service.app())
    serving = asyncio.create_task(server.serve(sockets=[]))
    accepting = asyncio.create_task(accept_connections(listener, server, settings.head_seconds))
    accepting.add_done_callback(lambda _: setattr(server, "should_exit", True))
    full = None
    try:
        await _unless_ended(serving, service.load(load))
        while not (server.started or serving.done()):
            await asyncio.sleep(_POLL_SECONDS)
        on_ready()
        full = await service.wait_for_end(serving, stop, marks)
        await service.drain()
    finally:
        accepting.cancel()
        await asyncio.wait({accepting})
        listener.close()
        await serving
        await service.close()
    if not accepting.cancelled():
        accepting.result()
    if full is not None:
        raise OutsideError(full, hint="the server has drained and may be started again")


class _Service:
    """What the routes and middlewares of one server share."""

    def __init__(self, settings: ServerSettings, reload: Callable[[str], LoadedModel] | None) -> None:
        self._settings = settings
        self._lifecycle = Lifecycle()
        self._models: dict[str, ServedModel] = {}
        self._requests = OpenRequests()
        self._metrics = Metrics()
        self._metrics.watch(lambda: {name: model.engine.stats() for name, model in self._models.items()})
        self._reloader = (
            Reloader(self._models, self._requests, self._lifecycle, reload, self._serve) if reload else None
        )

    def app(self) -> ASGIApp:
        """The API behind its middlewares, outermost last."""
        operations = [
            *health_routes(self._models, self._metrics, self._lifecycle),
            *admin_routes(self._models, self._reloader),
        ]
        admission = Admission(
            create_app(self._models, operations, ping_seconds=self._settings.ping_seconds),
            self._lifecycle,
            self._requests,
            max_open_per_tenant=self._settings.max_open_per_tenant,
            retry_after=self._retry_after,
        )
        keyring = Keyring(self._settings.api_keys, self._settings.admin_token)
        guarded = Authentication(admission, keyring)
        return RequestLog(allow_origins(guarded, self._settings.cors_origins), self._metrics)

    async def load(self, load: Load) -> None:
        """Load the models in a thread, then let requests in."""
        models, _ = await asyncio.gather(asyncio.to_thread(load, self._tell), asyncio.to_thread(build_forms))
        for loaded in models:
            self._models[loaded.name] = self._serve(loaded)
        self._lifecycle.phase = "ready"

    async def wait_for_end(
        self, serving: asyncio.Task[None], stop: asyncio.Event, marks: MemoryMarks | None
    ) -> str | None:
        """Wait until it is time to drain; returns the reason if it is the memory."""
        stopping = asyncio.create_task(stop.wait())
        tasks: set[asyncio.Task[object]] = {serving, stopping}
        watching = None
        if marks is not None:
            watching = asyncio.create_task(watch_memory(marks, self._lifecycle, self._drop_cached_prefixes))
            tasks.add(watching)
        done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting - {serving}:
            task.cancel()
        return watching.result() if watching in done and watching is not None else None

    async def drain(self) -> None:
        """Let what has begun finish within the grace period, then end it with an error."""
        self._lifecycle.drain(self._settings.grace_seconds)
        if await self._requests.wait_for_present(self._lifecycle.drain_end):
            return
        error = RequestError(
            "the server is shutting down and the time for open requests is over", code="shutting_down"
        )
        for model in self._engines():
            model.engine.fail(error)
        await self._requests.wait_for_present(time.monotonic() + _ABORT_SECONDS)

    async def close(self) -> None:
        """Close all engines. Raises InternalError for one whose step does not end."""
        for model in self._engines():
            await model.engine.close(_CLOSE_SECONDS)

    def _engines(self) -> list[ServedModel]:
        return [*self._models.values(), *(self._reloader.retiring if self._reloader else ())]

    def _serve(self, loaded: LoadedModel) -> ServedModel:
        observer = ModelObserver(self._metrics, loaded.name)
        prefixes = self._prefix_watch(loaded)
        observers = (observer,) if prefixes is None else (observer, prefixes)
        engine = AsyncEngine(loaded.engine, *observers, patience=self._settings.stall_seconds)
        return ServedModel(loaded.name, engine, int(time.time()), loaded.memory, loaded.digest, prefixes)

    def _prefix_watch(self, loaded: LoadedModel) -> PrefixWatch | None:
        if not loaded.engine.settings.prefix_caching:
            return None
        return PrefixWatch(loaded.name, loaded.engine.tokenizer, self._metrics.prefix_divergence)

    def _tell(self, what: str) -> None:
        self._lifecycle.detail = what

    def _retry_after(self) -> float:
        return max((model.engine.retry_after() for model in self._models.values()), default=0.0)

    def _drop_cached_prefixes(self) -> None:
        for model in self._models.values():
            model.engine.drop_cached_prefixes()


class _UvicornServer(uvicorn.Server):
    """uvicorn without its signal handlers, which would end the process with the signal's exit code."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals to whoever set `stop`."""
        yield


def _uvicorn_server(app: ASGIApp) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_CONNECTION_SECONDS,
    )
    return _UvicornServer(config)


async def _unless_ended(serving: asyncio.Task[None], loading: Coroutine[Any, Any, None]) -> None:
    """Wait for the models, or for a server that ends before, whose error is then raised."""
    task = asyncio.create_task(loading)
    await asyncio.wait({serving, task}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    else:
        await serving
