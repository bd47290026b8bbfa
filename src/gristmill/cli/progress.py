"""A progress bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

__all__ = ["ConsoleProgress"]

_LINE_EVERY_S = 15.0


class ConsoleProgress:
    """Shows stages on stderr; use it as a context manager so that the terminal is left clean."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar = RichProgress(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self._console,
            disable=not sys.stderr.isatty(),
        )
        self._task: TaskID | None = None
        self._name, self._unit = "", ""
        self._total = self._done = self._skipped = 0
        self._started = self._spoke = time.monotonic()

    def __enter__(self) -> ConsoleProgress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def stage(self, name: str, total: int, unit: str) -> None:
        """A new bar, or a new line where there is no terminal."""
        self._name, self._unit, self._total = name, unit, total
        self._done = self._skipped = 0
        self._started = self._spoke = time.monotonic()
        self._task = self._bar.add_task(name, total=total or None, unit=unit)
        if self._bar.disable:
            self._console.print(f"{name}: {total} {unit}" if total else name, highlight=False)

    def advance(self, steps: int = 1) -> None:
        """Move the bar; without a terminal, a line every 15 seconds."""
        self._done += steps
        if self._task is not None:
            self._bar.advance(self._task, steps)
        now = time.monotonic()
        if self._bar.disable and (now - self._spoke > _LINE_EVERY_S) and self._done < self._total:
            self._spoke = now
            self._console.print(self._line(now), highlight=False)

    def skip(self, steps: int) -> None:
        """Count steps that cost no time now, so that the time left stays honest."""
        self._done += steps
        self._skipped += steps
        if self._task is not None:
            self._bar.update(self._task, completed=self._done)

    def note(self, text: str) -> None:
        """A line above the bar."""
        self._console.print(text, highlight=False, markup=False)

    def _line(self, now: float) -> str:
        fresh = max(self._done - self._skipped, 1)
        left = (now - self._started) / fresh * (self._total - self._done)
        return f"{self._name}: {self._done}/{self._total} {self._unit}, about {left:.0f} s left"
