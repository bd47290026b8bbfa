"""What the native engine says about itself, and how it shares a machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gristmill.runtime.errors import InternalError
from gristmill.runtime.executors.base import SequenceStep
from gristmill.runtime.executors.native.stored import EngineFile, StoredWeight
from gristmill.runtime.kernels import _native
from gristmill.runtime.kernels.layout import WeightForm
from tests.runtime.executors.native.tiny_engines import (
    OpenExecutor,
    TinyEngine,
    all_rows,
    random_tokens,
)

MakeEngine = Callable[[str, str], TinyEngine]

PREFILL = SequenceStep(random_tokens(1, 600), 0, range(38), "all")


def damaged(engine: EngineFile, offset: int, folder: Path) -> EngineFile:
    """A copy of the engine with a NaN at `offset` of its weights file."""
    data = bytearray(engine.path.read_bytes())
    data[offset : offset + 4] = np.array([np.nan, np.nan], np.float16).tobytes()  # a NaN in float32 too
    path = folder / "weights.bin"
    path.write_bytes(data)
    return replace(engine, path=path)


def first_scale(weight: StoredWeight) -> int:
    """Where the scales of a weight's first group lie."""
    return weight.offset + WeightForm(weight.kind, weight.columns, weight.group).code_bytes


@pytest.mark.parametrize("linear", ["qkv", "o", "gate_up", "down"])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_scale_that_is_not_a_number_is_traced_to_its_layer(
    layer: int, linear: str, tiny_engine: MakeEngine, open_native: OpenExecutor, tmp_path: Path
) -> None:
    engine = tiny_engine("shared key heads", "4 bits, groups of 64, zero points").file
    bad = damaged(engine, first_scale(getattr(engine.layers[layer], linear)), tmp_path)
    executor = open_native(bad, debug_nan=True, threads=2)
    with pytest.raises(InternalError, match=f"the output of layer {layer} is not finite.*may be damaged"):
        executor.execute([PREFILL])


def test_a_head_that_is_not_a_number_is_told_from_the_layers(
    tiny_engine: MakeEngine, open_native: OpenExecutor, tmp_path: Path
) -> None:
    engine = tiny_engine("shared key heads", "plain").file
    executor = open_native(damaged(engine, first_scale(engine.head), tmp_path), debug_nan=True)
    with pytest.raises(InternalError, match="the logits are not finite"):
        executor.execute([PREFILL])


def test_looking_for_nan_changes_no_result(tiny_engine: MakeEngine, open_native: OpenExecutor) -> None:
    engine = tiny_engine("a window", "mixed").file
    plain, looking = (all_rows(open_native(engine, debug_nan=on), PREFILL.token_ids) for on in (False, True))
    assert np.array_equal(plain, looking)


def test_the_profile_adds_up_to_the_steps(tiny_engine: MakeEngine, open_native: OpenExecutor) -> None:
    executor = open_native(tiny_engine("shared key heads", "mixed").file, profile=True)
    executor.execute([PREFILL])
    shares = []
    for _ in range(20):
        before, start = executor.profile(), time.perf_counter()
        executor.execute([PREFILL])
        spent, after = time.perf_counter() - start, executor.profile()
        assert all(
            after[name] > before[name] for name in ("embed", "qkv", "append", "attend", "down", "head")
        )
        shares.append((sum(after.values()) - sum(before.values())) / spent)
    assert max(shares) <= 1
    assert max(shares) > 0.5  # the rest is Python's, or of who took the processor


def test_without_a_profile_nothing_is_measured(tiny_engine: MakeEngine, open_native: OpenExecutor) -> None:
    executor = open_native(tiny_engine("shared key heads", "mixed").file)
    executor.execute([PREFILL])
    assert set(executor.profile().values()) == {0.0}


def test_an_idle_engine_uses_no_processor_time(tiny_engine: MakeEngine, open_native: OpenExecutor) -> None:
    executor = open_native(tiny_engine("shared key heads", "mixed").file, threads=4)
    executor.execute([PREFILL])
    time.sleep(0.01)  # threads that wait spin for a moment before they sleep
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.05


@pytest.fixture
def busy_neighbours() -> Iterator[None]:
    """A process that never rests on every processor that this one may use."""
    spin = [sys.executable, "-c", "while True: pass"]
    neighbours = [subprocess.Popen(spin) for _ in os.sched_getaffinity(0)]
    yield
    for neighbour in neighbours:
        neighbour.kill()
        neighbour.wait()


@pytest.mark.usefixtures("busy_neighbours")
def test_busy_neighbours_change_no_result(tiny_engine: MakeEngine, open_native: OpenExecutor) -> None:
    engine = tiny_engine("shared key heads", "mixed").file
    expected = all_rows(open_native(engine, threads=1), PREFILL.token_ids)
    crowded = open_native(engine, threads=2)
    for _ in range(3):
        assert np.array_equal(all_rows(crowded, PREFILL.token_ids), expected)


def test_more_threads_than_processors_never_wait_for_each_other_forever(
    tiny_engine: MakeEngine, open_native: OpenExecutor
) -> None:
    engine, tokens = tiny_engine("shared key heads", "mixed").file, random_tokens(2, 5)
    batch = [SequenceStep(tokens, 0, [0]), SequenceStep(tokens[:1], 0, [1])]
    expected = open_native(engine, threads=1).execute(batch).copy()
    crowded = open_native(engine, threads=2 * _native.effective_threads())
    for _ in range(1000):
        assert np.array_equal(crowded.execute(batch), expected)


def test_engines_come_and_go_without_leaving_threads(
    tiny_engine: MakeEngine, open_native: OpenExecutor
) -> None:
    engine = tiny_engine("shared key heads", "mixed").file
    before = len(os.listdir("/proc/self/task"))
    for _ in range(20):
        executor = open_native(engine, threads=8)
        executor.execute([SequenceStep([1], 0, [0])])
        executor.close()
    assert len(os.listdir("/proc/self/task")) <= before
