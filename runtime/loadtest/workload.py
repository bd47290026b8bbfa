"""What is asked of a server, and when."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gristmill.runtime.loadtest.prompts import Segment
from gristmill.runtime.loadtest.trace import PREFIX_BLOCK, TraceRow

__all__ = ["PlannedRequest", "Shape", "Workload", "plan_requests"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Tokens of a prompt beside what all prompts share, and of its answer."""

    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    """One load: closed (`concurrency` clients that wait for their answers) or open (`rate`, a trace's times).

    shapes                request lengths, drawn at random where there are several
    rows                  a trace's requests instead of `shapes`
    rate                  requests a second with Poisson arrivals
    shared_prefix_tokens  the same text before all prompts
    requests, duration_s  when no more are sent: the earlier of both
    """

    shapes: tuple[Shape, ...] = (Shape(128, 128),)
    concurrency: int | None = None
    rate: float | None = None
    rows: tuple[TraceRow, ...] = field(default=(), repr=False)
    trace: str | None = None
    shared_prefix_tokens: int = 0
    requests: int | None = None
    duration_s: float | None = None
    seed: int = 0

    @property
    def is_open(self) -> bool:
        """True if requests come at their own times, however slow the server is."""
        return self.concurrency is None

    @property
    def name(self) -> str:
        """How a table calls it: `concurrency 8, 128 + 128 tokens`."""
        if self.concurrency is not None:
            load = f"concurrency {self.concurrency}"
        else:
            load = "at the trace's times" if self.rate is None else f"{self.rate:g} requests/s"
        lengths = " or ".join(f"{shape.prompt_tokens} + {shape.output_tokens}" for shape in self.shapes)
        shared = f"{self.shared_prefix_tokens} shared + " if self.shared_prefix_tokens else ""
        return f"{load}, {shared}{self.trace or f'{lengths} tokens'}"

    @property
    def num_requests(self) -> int | None:
        """How many there will be, if that is known before."""
        if self.duration_s is not None:
            return None
        limits = [number for number in (self.requests, len(self.rows) or None) if number is not None]
        return min(limits, default=None)

    def as_json(self) -> dict[str, Any]:
        """What was set; not the rows of a trace."""
        fields = asdict(self)
        del fields["rows"]
        return {"name": self.name, **{name: value for name, value in fields.items() if value is not None}}


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """`due` is in seconds after the start; None as soon as a client is free."""

    segments: tuple[Segment, ...]
    output_tokens: int
    due: float | None = None


def plan_requests(workload: Workload) -> Iterator[PlannedRequest]:
    """The requests in their order, the same for the same seed; endless unless something ends them."""
    requests = _traced(workload) if workload.rows else _drawn(workload)
    if workload.is_open:
        timed = _poisson(workload, requests) if workload.rate is not None else requests
        end = workload.duration_s
        requests = itertools.takewhile(lambda request: end is None or (request.due or 0.0) < end, timed)
    else:
        requests = (PlannedRequest(request.segments, request.output_tokens) for request in requests)
    return itertools.islice(requests, workload.requests)


def _drawn(workload: Workload) -> Iterator[PlannedRequest]:
    draw = random.Random(f"{workload.seed} shapes")
    for index in itertools.count():
        shape = draw.choice(workload.shapes)
        own = Segment(f"{workload.seed} request {index}", shape.prompt_tokens)
        yield PlannedRequest((*_shared(workload), own), shape.output_tokens)


def _traced(workload: Workload) -> Iterator[PlannedRequest]:
    for index, row in enumerate(workload.rows):
        segments = _blocks(row, workload.seed, index)
        yield PlannedRequest((*_shared(workload), *segments), row.output_tokens, row.seconds)


def _blocks(row: TraceRow, seed: int, index: int) -> Sequence[Segment]:
    """The blocks that the trace names, then a text of the request's own."""
    segments, left = [], row.input_tokens
    for block in row.prefix_ids:
        if left <= 0:
            break
        segments.append(Segment(f"{seed} block {block}", min(PREFIX_BLOCK, left)))
        left -= PREFIX_BLOCK
    if left > 0:
        segments.append(Segment(f"{seed} request {index}", left))
    return segments


def _shared(workload: Workload) -> Sequence[Segment]:
    tokens = workload.shared_prefix_tokens
    return [Segment(f"{workload.seed} shared", tokens)] if tokens else []


def _poisson(workload: Workload, requests: Iterator[PlannedRequest]) -> Iterator[PlannedRequest]:
    draw, due = random.Random(f"{workload.seed} arrivals"), 0.0
    for request in requests:
        yield PlannedRequest(request.segments, request.output_tokens, due)
        due += draw.expovariate(workload.rate or 1.0)
