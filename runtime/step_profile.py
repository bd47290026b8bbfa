"""Where the time of an engine's steps goes, operation by operation."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from gristmill.runtime.executors.base import Executor

__all__ = ["StepProfile"]


@runtime_checkable
class _Profiled(Protocol):
    """What an executor that can measure its operations has beside `Executor`."""

    def profile(self) -> dict[str, float]: ...


class StepProfile:
    """Seconds by operation from the moment that this is made, which is after the start-up proof.

    Empty for an executor that measures nothing, or was not asked to.
    """

    def __init__(self, executor: Executor) -> None:
        self._source = executor if isinstance(executor, _Profiled) else None
        self._before = self._read()
        self._seconds: dict[str, float] = {}
        self._steps = 0

    def count_step(self) -> None:
        """One more step was computed."""
        self._steps += 1

    def stop(self) -> None:
        """Take the last reading; the executor may be closed afterwards."""
        now = self._read()
        self._seconds = {name: value - self._before[name] for name, value in now.items()}
        self._source = None

    def lines(self) -> list[str]:
        """The table after `stop`: milliseconds of a mean step and share, the largest first."""
        total = sum(self._seconds.values())
        if not (total and self._steps):
            return []
        largest = sorted(self._seconds.items(), key=lambda entry: -entry[1])
        width = max(map(len, self._seconds))
        return [
            f"{self._steps} steps, {1e3 * total / self._steps:.3f} ms each:",
            *(
                f"  {name:<{width}} {1e3 * seconds / self._steps:9.3f} ms {seconds / total:6.1%}"
                for name, seconds in largest
                if seconds > 0
            ),
        ]

    def _read(self) -> dict[str, float]:
        return {} if self._source is None else self._source.profile()
