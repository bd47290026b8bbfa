"""What is known of one HTTP request when it ends: the content of its log line, and never its prompt."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

__all__ = ["RequestRecord", "current_record"]


@dataclass(slots=True)
class RequestRecord:
    """Filled in by the middleware and, under the model's name, by the engine's observer.

    Times are of the monotonic clock. A request may have several prompts and
    answers: tokens are added up; `began` is when the last of them left the queue,
    `first_token` the first token of any.
    """

    request_id: str
    method: str
    path: str
    arrived: float
    tenant: str = ""
    handler: str = ""
    model: str = ""
    status: int = 0
    error: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    submitted: float | None = None
    began: float | None = None
    first_token: float | None = None
    finish_reasons: set[str] = field(default_factory=set)
    num_open: int = 0
    num_preemptions: int = 0
    num_recomputed: int = 0

    def fields(self, now: float) -> dict[str, Any]:
        """The log line's fields; those of a generation only where one was asked for."""
        fields: dict[str, Any] = {
            "request_id": self.request_id,
            "tenant": self.tenant,
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "total_ms": _milliseconds(self.arrived, now),
        }
        if self.error:
            fields["error"] = self.error
        if self.submitted is None:
            return fields
        reasons = self.finish_reasons | ({"abort"} if self.num_open else set())
        return fields | {
            "model": self.model,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "queue_ms": _milliseconds(self.submitted, self.began),
            "ttft_ms": _milliseconds(self.arrived, self.first_token),
            "finish_reason": ",".join(sorted(reasons)),
            "preemptions": self.num_preemptions,
            "recomputed_tokens": self.num_recomputed,
        }


# The request that the running task serves, so that the layers between need not carry it.
current_record: ContextVar[RequestRecord | None] = ContextVar("current_record", default=None)


def _milliseconds(start: float, end: float | None) -> float | None:
    return None if end is None else round(1000 * (end - start), 2)
