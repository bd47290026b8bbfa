"""What the engine benchmark counts, and the random engines that it runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gristmill.runtime.architectures import plan_model
from gristmill.runtime.doctor import Speeds
from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.settings import EngineSettings
from tests.benchmarks.own_system import OwnSystem
from tests.benchmarks.random_engine import SHAPES, random_engine
from tests.benchmarks.roofline import ceiling, count_work
from tests.benchmarks.workloads import Storage, Workload

TINY = {**SHAPES["7b"], "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2}
TINY |= {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 320}
PLAN = plan_model(TINY)
STORAGE = Storage(weights=1000, kv_token=10, note="")
LINEAR = 2 * (4 * 128 * 128 + 3 * 128 * 192)


def test_decoding_reads_weights_once_a_step_and_the_cache_of_every_sequence() -> None:
    work = count_work(PLAN, STORAGE, Workload("decode", batch=4, context=100, steps=2))
    assert work.tokens == 8
    # Two steps that read 101 and 102 positions of each sequence (the new one included) and write one.
    assert work.bytes == 2 * 1000 + 4 * 10 * (101 + 102 + 2)


def test_decoding_multiplies_each_weight_with_each_token_and_each_query_with_each_key() -> None:
    work = count_work(PLAN, STORAGE, Workload("decode", batch=4, context=100, steps=2))
    assert work.linear == 8 * (LINEAR + 320 * 128)
    assert work.attention == 4 * (101 + 102) * 2 * (2 * 2 * 64)


def test_a_prompt_needs_one_row_of_logits_and_half_a_square_of_attention() -> None:
    work = count_work(PLAN, STORAGE, Workload("prefill", batch=1, context=512))
    assert work.linear == 512 * LINEAR + 320 * 128
    assert work.attention == (512 * 513 // 2) * 2 * (2 * 2 * 64)


@pytest.mark.parametrize(("gigabytes", "bound"), [(1e-6, "memory"), (1e9, "arithmetic")])
def test_the_slower_of_memory_and_arithmetic_is_the_ceiling(gigabytes: float, bound: str) -> None:
    work = count_work(PLAN, STORAGE, Workload("decode", 1, 16, 1))
    rates = {"int8": 1e6, "bfloat16": 1e6, "float32": 1e6}
    found = ceiling(work, Speeds(1, "scalar", gigabytes, rates), "int8")
    assert found.bound == bound
    seconds = work.bytes / (gigabytes * 1e9) if bound == "memory" else (work.linear + work.attention) / 1e6
    assert found.tokens_per_second == pytest.approx(1 / seconds)


def test_a_random_engine_runs_and_counts_its_own_bytes(tmp_path: Path) -> None:
    engine = random_engine(TINY, tmp_path)
    rows = [Workload("prefill", 3, 40), Workload("decode", 3, 40, 2)]
    system = OwnSystem(EngineFolder("tiny", "native-x86", tmp_path, tmp_path), EngineSettings(), rows)
    assert all(np.isfinite(system.measure(row)) and system.measure(row) > 0 for row in rows)
    assert system.storage.weights < engine.bytes - engine.embedding.bytes
    system.close()
