"""How a build tells what it is doing, without knowing who listens."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Progress", "SilentProgress"]


class Progress(Protocol):
    """Receives the story of a build. Stages follow one another; `advance` counts within one."""

    def stage(self, name: str, total: int, unit: str) -> None:
        """A stage begins, with `total` steps of `unit` (0 when it is one step)."""

    def advance(self, steps: int = 1) -> None:
        """Steps of the current stage are done."""

    def skip(self, steps: int) -> None:
        """Steps of the current stage were done by an earlier run."""

    def note(self, text: str) -> None:
        """A line worth keeping."""


class SilentProgress:
    """A listener that does nothing, for libraries and tests."""

    def stage(self, name: str, total: int, unit: str) -> None:
        """Ignored."""

    def advance(self, steps: int = 1) -> None:
        """Ignored."""

    def skip(self, steps: int) -> None:
        """Ignored."""

    def note(self, text: str) -> None:
        """Ignored."""
