"""What is measured of one request."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Record"]


@dataclass(slots=True)
class Record:
    """Times in seconds on one monotonic clock; `started` is when the request was due.

    `gaps` lie between pieces of text, of which each usually is a token.
    Tokens are the server's own counts where it gives them (`counted`), else
    pieces of text. `error` is the kind of failure, the same for all of its kind,
    `detail` what exactly was said.
    """

    started: float
    first: float | None = None
    last: float = 0.0
    ended: float = 0.0
    gaps: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    counted: bool = False
    error: str | None = None
    detail: str = ""

    @property
    def ttft(self) -> float | None:
        """Seconds to the first piece of text."""
        return None if self.first is None else self.first - self.started

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first; None for fewer than two."""
        if self.first is None or self.output_tokens < 2:
            return None
        return (self.last - self.first) / (self.output_tokens - 1)

    def text_at(self, now: float) -> None:
        """A piece of text has arrived."""
        if self.first is None:
            self.first = now
        else:
            self.gaps.append(now - self.last)
        self.last = now
        if not self.counted:
            self.output_tokens += 1
