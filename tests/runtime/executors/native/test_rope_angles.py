"""The native engine's table of rotary angles: right beyond its first blocks, the same however it grew."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gristmill.runtime.checkpoint import open_checkpoint
from gristmill.runtime.executors.base import KVCacheConfig, SequenceStep
from gristmill.runtime.executors.native.engine_file import EngineFile
from gristmill.runtime.executors.reference.executor import ReferenceExecutor
from tests.runtime.executors.native.tiny_engines import (
    OpenExecutor,
    RoundedHead,
    all_rows,
    compiled,
    random_tokens,
    relative_error,
    write_tiny,
)

TOKENS = random_tokens(5, 1040)  # the table grows by 1,024 positions
BLOCKS = 65
LIMIT = 0.003  # of the logits of a float32 model: both round the head's input


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("angles")
    return write_tiny(folder, "shared key heads", "plain", dtype="float32", max_position_embeddings=2048)


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> EngineFile:
    return compiled(checkpoint, checkpoint.parent / "engine")


def test_positions_beyond_the_first_block_are_those_of_the_reference(
    checkpoint: Path, engine: EngineFile, open_native: OpenExecutor
) -> None:
    source = RoundedHead(open_checkpoint(checkpoint))
    expected = all_rows(ReferenceExecutor(source, KVCacheConfig(BLOCKS, 16, "float32"), "float32"), TOKENS)
    found = all_rows(open_native(engine, blocks=BLOCKS, compute="bfloat16"), TOKENS)
    assert relative_error(found[-16:], expected[-16:]) < LIMIT


def test_a_table_that_grew_step_by_step_is_one_that_was_made_at_once(
    engine: EngineFile, open_native: OpenExecutor
) -> None:
    expected = all_rows(open_native(engine, blocks=BLOCKS), TOKENS)
    for threads in (1, 2):
        executor = open_native(engine, blocks=BLOCKS, threads=threads)
        done = 0
        for length in (3, 1, 500, 519, 1, 1, 15):
            step = SequenceStep(TOKENS[done : done + length], done, range(BLOCKS), "all")
            rows = executor.execute([step])
            done += length
            np.testing.assert_array_equal(rows, expected[done - length : done])
