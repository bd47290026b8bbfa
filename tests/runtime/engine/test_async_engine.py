"""The engine's thread seen from an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from gristmill.runtime.async_engine import AnswerStream, AsyncEngine
from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.errors import InternalError, RequestError
from gristmill.runtime.outputs import FinishReason
from gristmill.runtime.sampling.params import SamplingParams
from gristmill.runtime.server.metrics import Metrics
from gristmill.runtime.server.observer import ModelObserver

MakeEngine = Callable[..., LLMEngine]
GREEDY = SamplingParams(temperature=0.0, max_tokens=20)
ENDLESS = SamplingParams(max_tokens=200, ignore_eos=True)


async def read(stream: AnswerStream) -> dict[tuple[int, int], tuple[str, FinishReason | None]]:
    """Text and finish reason by prompt and answer; raises the first error."""
    answers: dict[tuple[int, int], tuple[str, FinishReason | None]] = {}
    async for deltas in stream:
        for prompt, delta in deltas:
            if delta.error is not None:
                raise delta.error
            text, _ = answers.get((prompt, delta.index), ("", None))
            answers[prompt, delta.index] = (text + delta.text, delta.finish_reason)
    return answers


def test_prompts_submitted_together_come_in_one_stream(make_engine: MakeEngine) -> None:
    async def main() -> None:
        engine = AsyncEngine(make_engine("parrot"))
        requests = [engine.engine.prepare(prompt, GREEDY) for prompt in ("one\n", "two\n")]
        answers = await read(engine.submit("r", requests))
        await engine.close()
        assert answers == {(0, 0): ("one", "stop"), (1, 0): ("two", "stop")}

    asyncio.run(main())


def test_a_slow_reader_gets_at_once_what_was_made_meanwhile(make_engine: MakeEngine) -> None:
    async def main() -> None:
        engine = AsyncEngine(make_engine("parrot"))
        stream = engine.submit("r", [engine.engine.prepare("slow\n", GREEDY)])
        while engine.num_open:
            await asyncio.sleep(0.001)
        turns = [deltas async for deltas in stream]
        await engine.close()
        assert ["".join(delta.text for _, delta in deltas) for deltas in turns] == ["slow"]

    asyncio.run(main())


def test_the_loop_is_free_while_a_step_runs(make_engine: MakeEngine) -> None:
    async def main() -> None:
        gate = threading.Event()
        engine = AsyncEngine(make_engine("parrot", gate=gate))
        stream = engine.submit("r", [engine.engine.prepare("one\n", GREEDY)])
        await asyncio.sleep(0.05)
        assert engine.stats().num_running == 1
        engine.submit("s", [engine.engine.prepare("two\n", GREEDY)])
        assert engine.stats().num_waiting == 1
        gate.set()
        assert await read(stream) == {(0, 0): ("one", "stop")}
        await engine.close()

    asyncio.run(main())


def test_the_bound_counts_what_the_thread_has_not_seen_yet(make_engine: MakeEngine) -> None:
    async def main() -> None:
        gate = threading.Event()
        engine = AsyncEngine(make_engine("parrot", gate=gate, max_num_seqs=1, max_waiting=1))
        request = engine.engine.prepare("one\n", GREEDY)
        streams = [engine.submit(str(index), [request]) for index in range(2)]
        with pytest.raises(RequestError) as caught:
            engine.submit("third", [request])
        assert caught.value.code == "queue_full"
        gate.set()
        for stream in streams:
            await read(stream)
        assert await read(engine.submit("fourth", [request])) == {(0, 0): ("one", "stop")}
        await engine.close()

    asyncio.run(main())


def test_finished_requests_leave_nothing_behind(make_engine: MakeEngine) -> None:
    async def main() -> None:
        observer = ModelObserver(Metrics(), "m")
        engine = AsyncEngine(make_engine(), observer)
        request = engine.engine.prepare("x", SamplingParams(n=2, max_tokens=3))
        for index in range(3):
            await read(engine.submit(str(index), [request, request]))
        assert not engine._streams
        assert not observer.num_open
        assert engine.stats().num_waiting == 0
        await engine.close()

    asyncio.run(main())


def test_more_answers_than_could_ever_queue_are_refused(make_engine: MakeEngine) -> None:
    async def main() -> None:
        engine = AsyncEngine(make_engine("parrot", max_num_seqs=1, max_waiting=1))
        with pytest.raises(RequestError, match="too many answers") as caught:
            engine.submit("r", [engine.engine.prepare("x", GREEDY)] * 3)
        assert caught.value.code == "invalid_value"
        await engine.close()

    asyncio.run(main())


def test_closing_ends_open_streams(make_engine: MakeEngine) -> None:
    async def main() -> None:
        engine = AsyncEngine(make_engine(delay=0.005))
        stream = engine.submit("r", [engine.engine.prepare("x", ENDLESS)])
        await asyncio.sleep(0.05)
        closing = asyncio.create_task(engine.close())
        answers = await asyncio.wait_for(read(stream), 5)
        assert answers[0, 0][1] == "abort"
        await closing
        with pytest.raises(RequestError) as caught:
            engine.submit("s", [engine.engine.prepare("x", ENDLESS)])
        assert caught.value.code == "shutting_down"

    asyncio.run(main())


def test_a_fault_outside_the_executor_ends_requests_and_not_the_engine(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug in the scheduler: no real part can be made to have one."""

    async def main() -> None:
        inner = make_engine("parrot")
        engine = AsyncEngine(inner)
        with monkeypatch.context() as patch:
            patch.setattr(inner._scheduler, "schedule", lambda: 1 / 0)
            stream = engine.submit("r", [inner.prepare("x\n", GREEDY)])
            await asyncio.sleep(0.05)
        with pytest.raises(ZeroDivisionError):
            await read(stream)
        assert engine.is_alive
        assert await read(engine.submit("s", [inner.prepare("x\n", GREEDY)])) == {(0, 0): ("x", "stop")}
        await engine.close()

    asyncio.run(main())


def test_a_thread_that_dies_is_noticed_by_everyone(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        inner = make_engine("parrot")
        monkeypatch.setattr(inner, "step", lambda: 1 / 0)
        monkeypatch.setattr(inner, "fail", lambda error: 1 / 0)
        engine = AsyncEngine(inner)
        requests = [inner.prepare("x\n", GREEDY)] * 2
        with pytest.raises(InternalError, match="has stopped"):
            await asyncio.wait_for(read(engine.submit("r", requests)), 5)
        await asyncio.sleep(0.05)
        assert not engine.is_alive
        with pytest.raises(RequestError):
            engine.submit("s", requests)
        await engine.close()

    asyncio.run(main())
