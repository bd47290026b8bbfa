"""An engine on a thread of its own, for an event loop that must never wait on a step.

Everything but the thread's loop runs on the event loop: `submit` checks the
bounds there, so a full queue is answered at once, and results are handed over
once a step.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from gristmill.runtime.engine import EngineRequest, EngineStats, LLMEngine
from gristmill.runtime.errors import GristmillError, InternalError, RequestError
from gristmill.runtime.outputs import OutputDelta

__all__ = ["AnswerStream", "AsyncEngine", "EngineObserver"]

_logger = logging.getLogger(__name__)


class EngineObserver(Protocol):
    """Told of everything that happens, on the event loop, with the monotonic clock's time of it."""

    def submitted(self, request_id: str, request: EngineRequest, now: float) -> None: ...

    def progressed(self, deltas: Sequence[OutputDelta], now: float) -> None: ...


class AnswerStream:
    """The answers to a list of prompts, as (prompt index, delta) in the order they are made.

    Ends after the last answer's last delta. Whoever stops reading before that calls `abort`.
    """

    def __init__(self, request_ids: Sequence[str], num_answers: int, abort: Callable[[str], None]) -> None:
        self._prompts = {request_id: index for index, request_id in enumerate(request_ids)}
        self._num_open = num_answers
        self._abort = abort
        self._deltas: asyncio.Queue[OutputDelta] = asyncio.Queue()

    def push(self, delta: OutputDelta) -> None:
        """Add a delta; the engine's side of the stream."""
        self._deltas.put_nowait(delta)

    def abort(self) -> None:
        """End what is unfinished and free its blocks after the current step."""
        if self._num_open:
            for request_id in self._prompts:
                self._abort(request_id)

    def __aiter__(self) -> AnswerStream:
        return self

    async def __anext__(self) -> tuple[int, OutputDelta]:
        if not self._num_open:
            raise StopAsyncIteration
        delta = await self._deltas.get()
        self._num_open -= delta.finish_reason is not None
        return self._prompts[delta.request_id], delta


class AsyncEngine:
    """Made on an event loop, which it belongs to; takes the engine over and closes it."""

    def __init__(self, engine: LLMEngine, observer: EngineObserver | None = None) -> None:
        self._engine = engine
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._streams: dict[str, tuple[AnswerStream, int]] = {}
        self._num_open = 0
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

    def stats(self) -> EngineStats:
        """Counts at this moment; requests that the thread has not seen yet wait too."""
        stats = self._engine.stats()
        return replace(stats, num_waiting=max(0, self._num_open - stats.num_running))

    def submit(self, request_id: str, requests: Sequence[EngineRequest]) -> AnswerStream:
        """Queue prompts together, or none of them; never waits.

        Raises RequestError: queue_full, shutting_down, or invalid_value for more
        answers than could ever be queued.
        """
        num_answers = sum(request.params.n for request in requests)
        self._check_vacancies(num_answers)
        ids = [f"{request_id}-{index}" for index in range(len(requests))]
        stream = AnswerStream(ids, num_answers, self.abort)
        for prompt_id, request in zip(ids, requests, strict=True):
            self._streams[prompt_id] = (stream, request.params.n)
            self._num_open += request.params.n
            if self._observer is not None:
                self._observer.submitted(prompt_id, request, time.monotonic())
            self._commands.put(partial(self._add, prompt_id, request))
        return stream

    def abort(self, request_id: str | None = None) -> None:
        """End one prompt's answers, or everything, after the current step."""
        self._commands.put(partial(self._engine.abort, request_id))

    async def close(self) -> None:
        """Abort what runs, end the thread and close the engine."""
        self._closing = True
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join)

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
            )

    def _run(self) -> None:
        """The thread: commands, step, results, until told to stop."""
        try:
            while self._take_commands():
                self._publish(self._step())
            self._engine.abort()
            self._publish(self._engine.take_outputs())
            self._engine.close()
        except Exception:
            _logger.exception("the engine's thread ended; no more requests are served")
            self._loop.call_soon_threadsafe(self._lose_everything)

    def _take_commands(self) -> bool:
        """Run what was asked since the last step, waiting while there is nothing to do; False to stop."""
        wait = not self._engine.has_work
        while True:
            try:
                command = self._commands.get(block=wait)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()
            wait = False

    def _step(self) -> list[OutputDelta]:
        try:
            return self._engine.step()
        except Exception as error:
            _logger.exception("a step failed outside the executor; its requests end")
            self._engine.fail(error)
            return self._engine.take_outputs()

    def _add(self, request_id: str, request: EngineRequest) -> None:
        try:
            self._engine.add_request(request_id, request)
        except GristmillError as error:
            self._publish(
                [
                    OutputDelta(request_id, index, finish_reason="error", error=error)
                    for index in range(request.params.n)
                ]
            )

    def _publish(self, deltas: list[OutputDelta]) -> None:
        if deltas:
            self._loop.call_soon_threadsafe(self._deliver, deltas, time.monotonic())

    def _deliver(self, deltas: list[OutputDelta], now: float) -> None:
        if self._observer is not None:
            self._observer.progressed(deltas, now)
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
