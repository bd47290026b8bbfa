"""Marks of memory: where they lie, and what happens above them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.errors import EXIT_OUTSIDE, OutsideError
from gristmill.runtime.machine import MemoryLimit
from gristmill.runtime.server.lifecycle import Lifecycle
from gristmill.runtime.server.memory_watch import MemoryMarks, choose_marks, watch_memory

MIB = 1 << 20


def marks_for(
    soft: int | None = None, restart: int | None = None, user: int | None = None, container: int | None = None
) -> tuple[int, int] | None:
    limit = None if container is None else MemoryLimit(container, 7)
    marks = choose_marks(soft, restart, user, lambda: limit)
    return None if marks is None else (marks.soft, marks.restart)


def test_without_a_limit_and_marks_nothing_is_watched() -> None:
    assert marks_for() is None


def test_a_containers_marks_lie_below_its_limit() -> None:
    assert marks_for(container=1000) == (920, 970)
    assert choose_marks(None, None, None, lambda: MemoryLimit(1000, 7)).read() == 7  # type: ignore[union-attr]


def test_the_users_own_limit_is_what_sheds_load() -> None:
    assert marks_for(user=1000) == (1000, 1100)
    assert marks_for(user=1000, container=2000) == (1000, 1100)
    assert marks_for(user=2000, container=1000) == (920, 970)


def test_the_users_marks_win() -> None:
    assert marks_for(soft=500, container=1000) == (500, 970)
    assert marks_for(restart=800, container=1000) == (800, 800)
    assert marks_for(soft=500, restart=600) == (500, 600)


def test_load_is_shed_above_the_soft_mark_and_taken_again_below() -> None:
    async def main() -> None:
        used, relieved = [900 * MIB], []
        lifecycle = Lifecycle("ready")
        marks = MemoryMarks(1000 * MIB, 2000 * MIB, lambda: used[0])
        watching = asyncio.create_task(
            watch_memory(marks, lifecycle, lambda: relieved.append(True), period=0.001)
        )
        await asyncio.sleep(0.02)
        assert lifecycle.refusal() is None
        used[0] = 1001 * MIB
        await asyncio.sleep(0.02)
        refusal = lifecycle.refusal()
        assert refusal is not None
        assert "1001 MiB of memory in use" in str(refusal)
        assert relieved == [True]
        used[0] = 900 * MIB
        await asyncio.sleep(0.02)
        assert lifecycle.refusal() is None
        used[0] = 2001 * MIB
        assert "restart mark of 2000 MiB" in await asyncio.wait_for(watching, 5)

    asyncio.run(main())


def test_a_server_that_sheds_load_is_alive_and_not_ready(
    make_engine: Callable[..., LLMEngine], serve: Callable[..., Any]
) -> None:
    server = serve(options={"marks": MemoryMarks(1, 1 << 60, lambda: 2)}, m=make_engine("parrot"))
    answer = httpx.post(f"{server.url}/v1/completions", json={"model": "m", "prompt": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
    assert int(answer.headers["retry-after"]) >= 1
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert httpx.get(f"{server.url}/ready").json()["status"] == "overloaded"


def test_a_server_above_the_restart_mark_drains_and_ends_with_its_code(
    make_engine: Callable[..., LLMEngine], serve: Callable[..., Any]
) -> None:
    server = serve(options={"marks": MemoryMarks(1, 1, lambda: 2 * MIB)}, m=make_engine("parrot"))
    server.join()
    assert isinstance(server.error, OutsideError)
    assert server.error.exit_code == EXIT_OUTSIDE == 3
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health")
