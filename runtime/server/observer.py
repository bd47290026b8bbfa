"""From an engine's events to metrics, and to the log line of the request that asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import Counter, Histogram

from gristmill.runtime.engine import EngineRequest
from gristmill.runtime.outputs import OutputDelta
from gristmill.runtime.server.metrics import Metrics
from gristmill.runtime.server.records import RequestRecord, current_record

__all__ = ["ModelObserver"]

_REASONS = ("stop", "length", "abort", "error")


@dataclass(slots=True)
class _Answer:
    """Monotonic times of one answer."""

    submitted: float
    record: RequestRecord | None
    began: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    num_tokens: int = 0


class ModelObserver:
    """Records one model's requests; an `EngineObserver`."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        self._name = name
        self._answers: dict[tuple[str, int], _Answer] = {}
        # Resolved now: a counter that is absent until its first event breaks rates and sums.
        self._accepted: Counter = metrics.accepted.labels(name)
        self._prompt_tokens: Counter = metrics.prompt_tokens.labels(name)
        self._tokens = metrics.tokens.of(name)
        self._ended: Mapping[str, Counter] = {
            reason: metrics.request_success.labels(name, reason) for reason in _REASONS
        }
        self._first_token: Histogram = metrics.first_token.labels(name)
        self._per_output_token: Histogram = metrics.per_output_token.labels(name)
        self._end_to_end: Histogram = metrics.end_to_end.labels(name)
        self._queue: Histogram = metrics.queue.labels(name)
        self._prefill: Histogram = metrics.prefill.labels(name)
        self._decode: Histogram = metrics.decode.labels(name)
        self._prompt_length: Histogram = metrics.prompt_length.labels(name)
        self._answer_length: Histogram = metrics.answer_length.labels(name)

    @property
    def num_open(self) -> int:
        """Answers that have not ended."""
        return len(self._answers)

    def submitted(self, request_id: str, request: EngineRequest, now: float) -> None:
        """Count a prompt and start the clocks of its answers."""
        num_tokens, num_answers = len(request.prompt_token_ids), request.params.n
        self._prompt_tokens.inc(num_tokens)
        self._prompt_length.observe(num_tokens)
        self._accepted.inc(num_answers)
        record = current_record.get()
        if record is not None:
            record.model = self._name
            record.submitted = now
            record.prompt_tokens += num_tokens
            record.num_open += num_answers
        for index in range(num_answers):
            self._answers[request_id, index] = _Answer(now, record)

    def progressed(self, deltas: Sequence[OutputDelta], started: float, ended: float) -> None:
        """Record what a step did: who began, tokens and ends."""
        for delta in deltas:
            answer = self._answers[delta.request_id, delta.index]
            if answer.began is None and (delta.progress is not None or delta.token_ids):
                self._begin(answer, delta, started)
            if delta.token_ids:
                self._count_tokens(answer, len(delta.token_ids), ended)
            if delta.finish_reason is not None:
                del self._answers[delta.request_id, delta.index]
                self._end(answer, delta, delta.finish_reason, ended)

    def _begin(self, answer: _Answer, delta: OutputDelta, now: float) -> None:
        answer.began = now
        self._queue.observe(now - answer.submitted)
        if answer.record is not None:
            answer.record.began = now
            if delta.index == 0 and delta.progress is not None:
                answer.record.cached_tokens += delta.progress.cached

    def _count_tokens(self, answer: _Answer, count: int, now: float) -> None:
        self._tokens.tokens += count
        answer.num_tokens += count
        if answer.record is not None:
            answer.record.completion_tokens += count
        if answer.last_token is None:
            answer.first_token = now
            self._first_token.observe(now - answer.submitted)
            if answer.began is not None:
                self._prefill.observe(now - answer.began)
            if answer.record is not None and answer.record.first_token is None:
                answer.record.first_token = now
        else:
            self._tokens.observe_gap(now - answer.last_token)
        answer.last_token = now

    def _end(self, answer: _Answer, delta: OutputDelta, reason: str, now: float) -> None:
        self._ended[reason].inc()
        self._end_to_end.observe(now - answer.submitted)
        self._answer_length.observe(answer.num_tokens)
        if answer.first_token is not None and answer.last_token is not None:
            seconds = answer.last_token - answer.first_token
            self._decode.observe(seconds)
            if answer.num_tokens > 1:
                self._per_output_token.observe(seconds / (answer.num_tokens - 1))
        if answer.record is not None:
            answer.record.num_open -= 1
            answer.record.finish_reasons.add(reason)
            answer.record.num_preemptions += delta.num_preemptions
            answer.record.num_recomputed += delta.num_recomputed
