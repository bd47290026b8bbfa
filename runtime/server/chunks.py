"""The chunks of a stream as server-sent events; what all of them begin with is encoded only once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any

from pydantic_core import to_json

from gristmill.runtime.outputs import OutputDelta
from gristmill.runtime.server.answers import Submission
from gristmill.runtime.server.protocol import ChatRequest, CompletionRequest

__all__ = ["ChunkEncoder", "ChunksOf", "stream_events"]

ChunksOf = Callable[[int, OutputDelta], Iterable[dict[str, Any]]]
"""The chunks, without head and usage, that show a piece of the answers to the prompt of this index."""


class ChunkEncoder:
    """Writes events that hold `head | chunk`, for chunks that share a head."""

    def __init__(self, head: Mapping[str, Any]) -> None:
        self._head = b"data: " + to_json(head)[:-1] + b","

    def encode(self, chunk: Mapping[str, Any]) -> bytes:
        """One event; `chunk` has at least one field, and none of the head's."""
        return self._head + to_json(chunk)[1:] + b"\n\n"


async def stream_events(
    submission: Submission, request: CompletionRequest | ChatRequest, chunks_of: ChunksOf
) -> AsyncGenerator[bytes, None]:
    """All events that are due at a time, in one piece; raises the error of the first answer that fails."""
    encoder, usage = ChunkEncoder(submission.head), submission.usage
    includes_usage, continuous = request.include_usage, request.continuous_usage
    async for deltas in submission.stream:
        due: list[bytes] = []
        failure = None
        for index, delta in deltas:
            failure = delta.error
            if failure is not None:
                break
            usage.add(index, delta)
            for chunk in chunks_of(index, delta):
                if includes_usage:
                    chunk["usage"] = usage.to_dict() if continuous else None
                due.append(encoder.encode(chunk))
        if due:
            yield b"".join(due)
        if failure is not None:
            raise failure
    if includes_usage:
        yield encoder.encode({"choices": [], "usage": usage.to_dict()})
