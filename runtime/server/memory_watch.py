"""Watching the memory while the server runs: shed load above one mark, end above the next.

The marks lie on the container's use of its limit where that binds, else on
this process's resident memory. Derived from a container's limit they lie below it:
at the limit the kernel kills without asking.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from gristmill.runtime.machine import MemoryLimit, memory_limit
from gristmill.runtime.server.lifecycle import Lifecycle

__all__ = ["MemoryMarks", "choose_marks", "watch_memory"]

_logger = logging.getLogger(__name__)

_CONTAINER_SOFT, _CONTAINER_RESTART = 0.92, 0.97
_USER_SOFT, _USER_RESTART = 1.0, 1.1
_CALM = 0.97  # of the soft mark, below which load is taken again
_PERIOD_SECONDS = 1.0
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryMarks:
    """Bytes above which the server sheds load and ends, and how to read what is in use."""

    soft: int
    restart: int
    read: Callable[[], int]


def choose_marks(
    soft: int | None,
    restart: int | None,
    user_limit: int | None,
    container: Callable[[], MemoryLimit | None] = memory_limit,
) -> MemoryMarks | None:
    """The user's marks, the missing ones derived from the tighter limit; None without marks and limits."""
    limit = container()
    if limit is not None and (user_limit is None or limit.limit < user_limit):
        derived = int(limit.limit * _CONTAINER_SOFT), int(limit.limit * _CONTAINER_RESTART)
        read = _container_reader(container)
    elif user_limit is not None:
        derived = int(user_limit * _USER_SOFT), int(user_limit * _USER_RESTART)
        read = _resident
    elif soft or restart:
        highest = psutil.virtual_memory().total
        derived, read = (min(restart or highest, highest), highest), _resident
    else:
        return None
    marks = MemoryMarks(soft or derived[0], restart or derived[1], read)
    return marks if marks.soft <= marks.restart else MemoryMarks(marks.restart, marks.restart, read)


async def watch_memory(
    marks: MemoryMarks,
    lifecycle: Lifecycle,
    relieve: Callable[[], None],
    *,
    period: float = _PERIOD_SECONDS,
) -> str:
    """Shed load while memory is above the soft mark, calling `relieve` when that begins.

    Returns, with the reason, once it is above the restart mark.
    """
    while True:
        used = marks.read()
        if used > marks.restart:
            return (
                f"{used // _MIB} MiB of memory in use, above the restart mark of {marks.restart // _MIB} MiB"
            )
        if used > marks.soft and not lifecycle.shedding:
            reason = f"{used // _MIB} MiB of memory in use, above the soft mark of {marks.soft // _MIB} MiB"
            _logger.warning("%s: new requests are turned away", reason)
            lifecycle.shedding = reason
            relieve()
        elif lifecycle.shedding and used < _CALM * marks.soft:
            _logger.warning("%d MiB of memory in use: new requests are taken again", used // _MIB)
            lifecycle.shedding = ""
        await asyncio.sleep(period)


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)


def _container_reader(container: Callable[[], MemoryLimit | None]) -> Callable[[], int]:
    def read() -> int:
        limit = container()
        return 0 if limit is None else limit.usage

    return read
