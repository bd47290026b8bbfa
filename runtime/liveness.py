"""Whether an engine's thread brings its work forward, told by time and not by its word."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Liveness", "Stall"]

_STEPS_OF_PATIENCE = 4.0
_FADE = 0.99  # a step's length counts for about the next hundred


@dataclass(frozen=True, slots=True)
class Stall:
    """Work has stood still for `seconds`, and more than `limit` is not normal here."""

    seconds: float
    limit: float


class Liveness:
    """The engine's thread records its steps; any other may ask.

    Times are of the monotonic clock. Work stands still when nothing was said
    for `patience` seconds, or for four times the longest of the recent steps where that is
    more: a machine whose steps take long is slow, not stuck.
    """

    def __init__(self, patience: float, now: float) -> None:
        self._patience = patience
        self._last_progress = now
        self._longest_step = 0.0

    def work_began(self, now: float) -> None:
        """There is work after there was none."""
        self._last_progress = now

    def stepped(self, started: float, ended: float, *, progressed: bool) -> None:
        """A step has ended; `progressed` says that a request has something to show for it."""
        self._longest_step = max(ended - started, self._longest_step * _FADE)
        if progressed:
            self._last_progress = ended

    def stall(self, now: float) -> Stall | None:
        """How long the work has stood still, given that there is some; None while all is well."""
        limit = max(self._patience, _STEPS_OF_PATIENCE * self._longest_step)
        seconds = now - self._last_progress
        return Stall(seconds, limit) if seconds > limit else None
