"""Chunks whose head is encoded once are those that are encoded whole."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.runtime.async_engine import AnswerStream
from gristmill.runtime.engine import EngineRequest
from gristmill.runtime.errors import InternalError
from gristmill.runtime.outputs import OutputDelta
from gristmill.runtime.sampling.params import SamplingParams
from gristmill.runtime.server.answers import Submission
from gristmill.runtime.server.chunks import ChunkEncoder, stream_events
from gristmill.runtime.server.protocol import CompletionRequest
from gristmill.runtime.server.usage import UsageCounter

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
VALUES = st.recursive(
    NUMBERS | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=20
)
HEAD = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}


def read(event: bytes) -> Any:
    """The twin: the whole event by the standard library, which must be one event on one line."""
    start, data, end = event[:6], event[6:-2], event[-2:]
    assert (start, end) == (b"data: ", b"\n\n")
    assert b"\n" not in data
    assert b"\r" not in data
    return json.loads(data.decode())


@given(TEXTS, st.dictionaries(TEXTS.map("x{}".format), VALUES, min_size=1))
def test_an_event_holds_head_and_chunk(model: str, chunk: dict[str, Any]) -> None:
    head = HEAD | {"model": model}
    assert read(ChunkEncoder(head).encode(chunk)) == json.loads(json.dumps(head | chunk))


def pieces_of(*deltas: OutputDelta, usage: bool) -> tuple[list[bytes], Exception | None]:
    """What a reader gets who comes when all of `deltas` are there, and the error that ends it."""
    prompt = EngineRequest("hello", (1, 2, 3), SamplingParams(n=1))
    options = {"include_usage": True, "continuous_usage_stats": True} if usage else None
    fields = {"model": "m", "prompt": "hello", "stream": True, "stream_options": options}
    request = CompletionRequest.model_validate(fields)

    async def main() -> tuple[list[bytes], Exception | None]:
        stream = AnswerStream(["r"], 1, lambda request_id: None)
        for delta in deltas:
            stream.push(delta)
        submission = Submission(HEAD, [prompt], stream, UsageCounter([prompt]), 0.0, None)

        def chunks_of(index: int, delta: OutputDelta) -> list[dict[str, Any]]:
            return [{"choices": [{"index": index, "text": delta.text}]}]

        pieces: list[bytes] = []
        try:
            async for piece in stream_events(submission, request, chunks_of):
                pieces.append(piece)
        except InternalError as error:
            return pieces, error
        return pieces, None

    return asyncio.run(main())


@pytest.mark.parametrize("usage", [False, True])
def test_what_is_due_at_a_time_is_one_piece_of_an_event_each(usage: bool) -> None:
    texts = ["a", "\u2028\n\n", "é😀"]
    deltas = [OutputDelta("r", 0, text, (7,)) for text in texts]
    pieces, error = pieces_of(*deltas, OutputDelta("r", 0, finish_reason="stop"), usage=usage)
    events = [read(event + b"\n\n") for event in pieces[0].split(b"\n\n")[:-1]]
    assert error is None
    assert len(pieces) == (2 if usage else 1)
    assert [event["choices"][0]["text"] for event in events] == [*texts, ""]
    assert [event.get("usage", {}).get("completion_tokens") for event in events] == (
        [1, 2, 3, 3] if usage else [None] * 4
    )


def test_what_came_before_an_error_is_shown_before_it() -> None:
    failure = InternalError("the step failed")
    deltas = [OutputDelta("r", 0, "shown"), OutputDelta("r", 0, finish_reason="error", error=failure)]
    pieces, error = pieces_of(*deltas, usage=False)
    assert [read(piece)["choices"][0]["text"] for piece in pieces] == ["shown"]
    assert error is failure
