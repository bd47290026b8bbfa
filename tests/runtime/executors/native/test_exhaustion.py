"""Threads and memory that the system refuses are one clear error, and leave nothing behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gristmill.runtime.errors import IntegrityError, OutsideError
from gristmill.runtime.executors.base import SequenceStep
from gristmill.runtime.executors.native.stored import EngineFile
from tests.little_memory import little_memory
from tests.runtime.executors.native.tiny_engines import OpenExecutor, TinyEngine, all_rows, random_tokens

MakeEngine = Callable[[str, str], TinyEngine]


@pytest.fixture(scope="module")
def engine(tiny_engine: MakeEngine) -> EngineFile:
    return tiny_engine("shared key heads", "mixed").file


def threads_fall_to(count: int) -> bool:
    """Whether `count` threads are left soon: the system lists those that ended for a moment."""
    deadline = time.monotonic() + 5
    while len(os.listdir("/proc/self/task")) > count:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_threads_that_can_not_start_are_an_error_and_the_others_end(
    engine: EngineFile, open_native: OpenExecutor
) -> None:
    before = len(os.listdir("/proc/self/task"))
    message = "the system refuses 500 threads to the native engine; found .*; ask for fewer threads"
    with little_memory(64), pytest.raises(OutsideError, match=message):
        open_native(engine, threads=500)
    assert threads_fall_to(before)


def test_weights_that_can_not_be_mapped_are_an_error(
    engine: EngineFile, open_native: OpenExecutor, tmp_path: Path
) -> None:
    larger = replace(engine, path=tmp_path / "weights.bin", bytes=1 << 34)
    with pytest.raises(OutsideError, match=r"can't map .*weights\.bin into memory; found .*No such file"):
        open_native(larger)
    with larger.path.open("wb") as file:
        file.truncate(larger.bytes)
    with little_memory(64), pytest.raises(OutsideError, match="Cannot allocate memory"):
        open_native(larger)
    with larger.path.open("r+b") as file:
        file.truncate(larger.bytes - 1)
    with pytest.raises(IntegrityError, match=r"weights\.bin: bytes; found .*; expected 17179869184"):
        open_native(larger)


@pytest.mark.parametrize("blocks", [1_000_000, 2**31 - 1])
def test_a_cache_that_does_not_fit_is_an_error_that_says_its_size(
    blocks: int, engine: EngineFile, open_native: OpenExecutor
) -> None:
    size = len(engine.plan.layers) * blocks * 2 * 2 * 16 * 16 * 4  # keys and values of 2 heads in float32
    message = f"a KV cache of {blocks} blocks of 16 tokens does not fit; found no memory for {size} bytes"
    with little_memory(64), pytest.raises(OutsideError, match=message):
        open_native(engine, blocks=blocks)


def test_a_step_that_does_not_fit_is_an_error_and_a_smaller_one_runs(
    engine: EngineFile, open_native: OpenExecutor
) -> None:
    tokens = random_tokens(1, 1000)
    executor = open_native(engine, blocks=8 * 63)
    batch = [SequenceStep(tokens, 0, range(63 * i, 63 * i + 63), "all") for i in range(8)]
    with (
        little_memory(8),
        pytest.raises(OutsideError, match=r"a step of 8000 tokens does not fit; found no memory"),
    ):
        executor.execute(batch)
    small = all_rows(executor, tokens)
    assert np.array_equal(executor.execute(batch)[-1000:], small)


def test_logits_outlive_the_executor_and_the_engine_goes_with_them(
    engine: EngineFile, open_native: OpenExecutor
) -> None:
    before = len(os.listdir("/proc/self/task"))
    executor = open_native(engine, threads=4)
    logits = executor.execute([SequenceStep([1, 2, 3], 0, [0], "all")])
    expected = logits.copy()
    executor.close()
    assert np.array_equal(logits, expected)
    assert len(os.listdir("/proc/self/task")) == before + 3
    del logits
    assert threads_fall_to(before)
