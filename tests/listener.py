"""A listener to a build's progress that keeps what it is told."""

from __future__ import annotations

from dataclasses import dataclass, field

from gristmill.pipeline.progress import SilentProgress

__all__ = ["Listener"]


@dataclass
class Listener(SilentProgress):
    """`heard` has stages as "name: total unit" and steps as "+steps", in order."""

    heard: list[str] = field(default_factory=list)
    stages: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def stage(self, name: str, total: int, unit: str) -> None:
        self.stages.append(name)
        self.heard.append(f"{name}: {total} {unit}")

    def advance(self, steps: int = 1) -> None:
        self.heard.append(f"+{steps}")

    def note(self, text: str) -> None:
        self.notes.append(text)
