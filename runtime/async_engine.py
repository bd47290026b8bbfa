"""An engine on a thread of its own, for an event loop that must never wait on a step.

Everything but the thread's loop runs on the event loop: `submit` checks the
bounds there, so a full queue is answered at once, and results are handed over
once a step. A step that never ends can't be interrupted from within the
process; `stall` tells of it, and whoever watches /health restarts the server.
"""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from gristmill.runtime.engine import EngineRequest, LLMEngine
from gristmill.runtime.engine_stats import EngineStats
from gristmill.runtime.errors import GristmillError, InternalError, RequestError
from gristmill.runtime.liveness import Liveness, Stall
from gristmill.runtime.outputs import OutputDelta

__all__ = ["AnswerStream", "AsyncEngine", "EngineObserver"]

T = TypeVar("T")

_PATIENCE_SECONDS = 30.0
_POLL_SECONDS = 0.01
_logger = logging.getLogger(__name__)


class EngineObserver(Protocol):
    """Told of everything that happens, on the event loop, with the monotonic clock's times of it.

    `submitted` is called within `AsyncEngine.submit`, in its caller's context.
    """

    def submitted(self, request_id: str, request: EngineRequest, now: float) -> None: ...

    def progressed(self, deltas: Sequence[OutputDelta], started: float, ended: float) -> None: ...


class AnswerStream:
    """The answers to a list of prompts as (prompt index, delta), in the order they are made.

    Iterating waits for the next and gives all that are there: a reader that is
    slower than the engine catches up in one turn. Ends after the last answer's
    last delta. Whoever stops reading before that calls `abort`.
    """

    def __init__(self, request_ids: Sequence[str], num_answers: int, abort: Callable[[str], None]) -> None:
        self._prompts = {request_id: index for index, request_id in enumerate(request_ids)}
        self._num_open = num_answers
        self._abort = abort
        self._unread: list[tuple[int, OutputDelta]] = []
        self._reader: asyncio.Future[None] | None = None

    def push(self, delta: OutputDelta) -> None:
        """Add a delta; the engine's side of the stream."""
        self._num_open -= delta.finish_reason is not None
        self._unread.append((self._prompts[delta.request_id], delta))
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def abort(self) -> None:
        """End what is unfinished and free its blocks after the current step."""
        if self._num_open:
            for request_id in self._prompts:
                self._abort(request_id)

    def __aiter__(self) -> AnswerStream:
        return self

    async def __anext__(self) -> list[tuple[int, OutputDelta]]:
        if not self._unread:
            if not self._num_open:
                raise StopAsyncIteration
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        deltas, self._unread = self._unread, []
        return deltas


class AsyncEngine:
    """Made on an event loop, which it belongs to; takes the engine over and closes it.

    `patience` is how many seconds work may stand still, see `Liveness`.
    """

    def __init__(
        self,
        engine: LLMEngine,
        *observers: EngineObserver,
        patience: float = _PATIENCE_SECONDS,
    ) -> None:
        self._engine = engine
        self._observers = observers
        self._loop = asyncio.get_running_loop()
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._streams: dict[str, tuple[AnswerStream, int]] = {}
        self._num_open = 0
        # Prompt tokens handed over, counted by the loop, and those taken, counted by the thread.
        self._num_tokens_given = 0
        self._num_tokens_taken = 0
        self._liveness = Liveness(patience, time.monotonic())
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="gristmill-engine", daemon=True)
        self._thread.start()

    @property
    def engine(self) -> LLMEngine:
        """The engine, for `prepare` and its properties; its other methods belong to the thread."""
        return self._engine

    @property
    def is_alive(self) -> bool:
        """True while requests can be served."""
        return self._thread.is_alive() and not self._closing

    @property
    def num_open(self) -> int:
        """Answers that run or wait."""
        return self._num_open

    def stats(self) -> EngineStats:
        """Counts at this moment; requests that the thread has not seen yet wait too."""
        stats = self._engine.stats()
        return replace(
            stats,
            num_waiting=max(0, self._num_open - stats.num_running),
            num_waiting_tokens=stats.num_waiting_tokens + self._num_tokens_given - self._num_tokens_taken,
        )

    def stall(self) -> Stall | None:
        """For how long the open answers have stood still; None while all is well or nothing is asked."""
        return self._liveness.stall(time.monotonic()) if self._num_open else None

    def retry_after(self) -> float:
        """Seconds after which the queue has likely moved."""
        return self._engine.retry_after()

    def submit(self, request_id: str, requests: Sequence[EngineRequest]) -> AnswerStream:
        """Queue prompts together, or none of them; never waits.

        Raises RequestError: queue_full, shutting_down, or invalid_value for more
        answers than could ever be queued.
        """
        num_answers = sum(request.params.n for request in requests)
        self._check_vacancies(num_answers)
        self._check_tokens(sum(map(_num_tokens, requests)))
        if not self._num_open:
            self._liveness.work_began(time.monotonic())
        ids = [f"{request_id}-{index}" for index in range(len(requests))]
        stream = AnswerStream(ids, num_answers, self.abort)
        for prompt_id, request in zip(ids, requests, strict=True):
            self._streams[prompt_id] = (stream, request.params.n)
            self._num_open += request.params.n
            self._num_tokens_given += _num_tokens(request)
            for observer in self._observers:
                observer.submitted(prompt_id, request, time.monotonic())
            self._commands.put(partial(self._add, prompt_id, request))
        return stream

    def abort(self, request_id: str | None = None) -> None:
        """End one prompt's answers, or everything, after the current step."""
        self._commands.put(partial(self._engine.abort, request_id))

    def fail(self, error: Exception) -> None:
        """End everything with an error that its clients are shown, after the current step."""
        self._commands.put(partial(self._engine.fail, error))

    def drop_cached_prefixes(self) -> None:
        """Forget the prefixes of ended requests, after the current step."""
        self._commands.put(self._engine.reset_prefix_cache)

    async def call(self, work: Callable[[], T]) -> T:
        """The result of `work`, run by the engine's thread between two steps; raises what it raises."""
        result: Future[T] = Future()

        def run() -> None:
            if result.set_running_or_notify_cancel():
                try:
                    result.set_result(work())
                except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the caller
                    result.set_exception(error)

        self._commands.put(run)
        return await asyncio.wrap_future(result)

    async def close(self, timeout: float = math.inf) -> None:
        """Abort what runs, end the thread and close the engine.

        Raises InternalError for a step that has not ended after `timeout` seconds.
        """
        self._closing = True
        self._commands.put(None)
        end = time.monotonic() + timeout
        while self._thread.is_alive():
            if time.monotonic() > end:
                raise InternalError("a step of the engine does not end", found=f"{timeout:g} s of waiting")
            await asyncio.sleep(_POLL_SECONDS)

    def _check_vacancies(self, num_answers: int) -> None:
        if not self.is_alive:
            raise RequestError("the server is shutting down", code="shutting_down")
        capacity = self._engine.capacity
        if num_answers > capacity:
            raise RequestError(
                "the request asks for too many answers at once",
                field="prompt",
                found=f"{num_answers} answers",
                expected=f"at most {capacity}",
            )
        if self._num_open + num_answers > capacity:
            raise RequestError(
                "the waiting queue is full",
                code="queue_full",
                found=f"{self._num_open} answers running or waiting",
                expected=f"at most {capacity}",
                hint="try again later",
                retry_after=self.retry_after(),
            )

    def _check_tokens(self, num_tokens: int) -> None:
        """A prompt of any length may wait alone; beside others, only within the bound."""
        waiting = self.stats().num_waiting_tokens
        limit = self._engine.settings.max_waiting_tokens
        if waiting and waiting + num_tokens > limit:
            raise RequestError(
                "the waiting queue is full",
                code="queue_full",
                found=f"{waiting} prompt tokens waiting and {num_tokens} more",
                expected=f"at most {limit}",
                hint="try again later",
                retry_after=self.retry_after(),
            )

    def _run(self) -> None:
        """The thread: commands, step, results, until told to stop."""
        try:
            while self._take_commands():
                self._step()
            self._engine.abort()
            now = time.monotonic()
            self._publish(self._engine.take_outputs(), now, now)
            self._engine.close()
        except Exception:
            _logger.exception("the engine's thread ended; no more requests are served")
            self._on_loop(self._lose_everything)

    def _take_commands(self) -> bool:
        """Run what was asked since the last step, waiting while there is nothing to do; False to stop."""
        if self._engine.has_work and self._commands.empty():
            return True
        while True:
            command = self._commands.get()
            if command is None:
                return False
            command()
            if self._commands.empty():
                return True

    def _step(self) -> None:
        started = time.monotonic()
        try:
            deltas = self._engine.step()
        except Exception as error:
            _logger.exception("a step failed outside the executor; its requests end")
            self._engine.fail(error)
            deltas = self._engine.take_outputs()
        ended = time.monotonic()
        self._liveness.stepped(started, ended, progressed=bool(deltas))
        self._publish(deltas, started, ended)

    def _add(self, request_id: str, request: EngineRequest) -> None:
        self._num_tokens_taken += _num_tokens(request)
        try:
            self._engine.add_request(request_id, request)
        except GristmillError as error:
            now = time.monotonic()
            deltas = [
                OutputDelta(request_id, index, finish_reason="error", error=error)
                for index in range(request.params.n)
            ]
            self._publish(deltas, now, now)

    def _publish(self, deltas: list[OutputDelta], started: float, ended: float) -> None:
        if deltas:
            self._on_loop(partial(self._deliver, deltas, started, ended))

    def _on_loop(self, callback: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has ended before a step that was given up: nobody listens
            self._loop.call_soon_threadsafe(callback)

    def _deliver(self, deltas: list[OutputDelta], started: float, ended: float) -> None:
        for observer in self._observers:
            observer.progressed(deltas, started, ended)
        for delta in deltas:
            stream, num_open = self._streams[delta.request_id]
            stream.push(delta)
            if delta.finish_reason is None:
                continue
            self._num_open -= 1
            if num_open == 1:
                del self._streams[delta.request_id]
            else:
                self._streams[delta.request_id] = (stream, num_open - 1)

    def _lose_everything(self) -> None:
        """Tell every open request that the thread is gone."""
        error = InternalError("the engine has stopped", hint="restart the server; its log has the reason")
        streams, self._streams, self._num_open = self._streams, {}, 0
        for request_id, (stream, _) in streams.items():
            stream.push(OutputDelta(request_id, 0, finish_reason="error", error=error))


def _num_tokens(request: EngineRequest) -> int:
    """Prompt tokens that the request's answers read, each for itself."""
    return len(request.prompt_token_ids) * request.params.n
