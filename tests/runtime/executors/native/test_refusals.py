"""What the native engine can't do is refused in words before anything is written, and nothing crashes it."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gristmill.runtime.errors import InputError, InternalError, UnsupportedError
from gristmill.runtime.executors.base import KVCacheConfig, SequenceStep
from gristmill.runtime.executors.native.executor import NativeExecutor
from gristmill.runtime.executors.native.model_spec import model_spec
from gristmill.runtime.kernels import _native
from gristmill.runtime.settings import ExecutorOptions
from tests.runtime.executors.native.tiny_engines import (
    NUM_BLOCKS,
    OpenExecutor,
    TinyEngine,
    all_rows,
    open_executor,
    random_tokens,
)

MakeEngine = Callable[[str, str], TinyEngine]


@pytest.fixture(scope="module")
def engine(tiny_engine: MakeEngine) -> TinyEngine:
    return tiny_engine("shared key heads", "mixed")


@pytest.fixture(scope="module")
def executor(engine: TinyEngine) -> Iterator[NativeExecutor]:
    made = open_executor(engine.file, threads=2)
    yield made
    made.close()


GOOD = SequenceStep(list(range(20)), 0, [0, 1])
BAD_STEPS: Mapping[str, tuple[SequenceStep, str]] = {
    "no tokens": (replace(GOOD, token_ids=[]), "token ids; found none"),
    "token too large": (replace(GOOD, token_ids=[1, 97]), "token id; found 97; expected 0 to 96"),
    "token beyond 32 bits": (replace(GOOD, token_ids=[2**32]), "token id; found 4294967296"),
    "negative token": (replace(GOOD, token_ids=[-1]), "token id; found -1"),
    "negative start": (replace(GOOD, start=-1), "positions; found -1 to 18; expected 0 to 1023"),
    "past the last position": (replace(GOOD, start=1010, block_table=range(70)), "found 1010 to 1029"),
    "start beyond 32 bits": (replace(GOOD, start=2**32), "positions; found 4294967296"),
    "short block table": (replace(GOOD, block_table=[0]), "found 1 blocks; expected at least 2"),
    "block too large": (replace(GOOD, block_table=[0, NUM_BLOCKS]), f"block; found {NUM_BLOCKS}; expected"),
    "negative block": (replace(GOOD, block_table=[-1, 0]), "block; found -1"),
    "one block twice": (replace(GOOD, block_table=[3, 3]), "block 3 is written twice"),
    "another's block": (replace(GOOD, block_table=[9, 8]), "block 8 is written twice"),
    "unknown rows": (replace(GOOD, logits="first"), "logits; found 'first'"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("bad", BAD_STEPS)
def test_a_step_outside_the_plan_or_the_cache_is_refused(bad: str, executor: NativeExecutor) -> None:
    step, message = BAD_STEPS[bad]
    with pytest.raises(InputError) as refusal:
        executor.execute([SequenceStep([1, 2], 0, [8]), step])
    assert str(refusal.value).startswith("batch entry 1: ")
    assert message in str(refusal.value)


def test_a_refused_step_writes_nothing(executor: NativeExecutor) -> None:
    tokens = random_tokens(1, 30)
    expected = all_rows(executor, tokens)[-1]
    executor.execute([SequenceStep(tokens[:29], 0, [0, 1], "none")])
    with pytest.raises(InputError):
        executor.execute([SequenceStep([9] * 29, 0, [0, 1]), SequenceStep([97], 0, [5])])
    assert np.array_equal(executor.execute([SequenceStep(tokens[29:], 29, [0, 1])])[0], expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"blocks": 0}, "found 0 blocks of 16 tokens; expected at least one block of a multiple of 16"),
        ({"blocks": -1}, "found -1 blocks"),
        ({"block_size": 0}, "blocks of 0 tokens"),
        ({"block_size": 24}, "blocks of 24 tokens"),
        ({"block_size": -16}, "blocks of -16 tokens"),
        ({"blocks": 2**31}, "found 2147483648 blocks; expected at most 2147483647"),
        ({"blocks": 2**30, "block_size": 32}, "found 1073741824 blocks; expected at most 1073741823"),
        ({"blocks": 1, "block_size": 2**31}, "blocks of 2147483648 tokens; expected at most 2147483632"),
        ({"threads": 0}, "threads of the native engine; found 0; expected 1 to"),
        ({"threads": -1}, "threads of the native engine; found -1; expected 1 to"),
        ({"threads": 10_000}, "threads of the native engine; found 10000; expected 1 to"),
    ],
)
def test_sizes_that_it_can_not_have_are_refused(
    settings: dict[str, Any], message: str, engine: TinyEngine
) -> None:
    with pytest.raises(InputError, match=message):
        open_executor(engine.file, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv": "float64"}, "native engine: KV cache type; found float64; expected float32 or bfloat16"),
        ({"compute": "float32"}, "native engine: compute type; found float32; expected int8 or bfloat16"),
        (
            {"instruction_set": "neon"},
            "GRISTMILL_ISA names an instruction set .*; found neon; expected",
        ),
    ],
)
def test_types_that_it_does_not_have_are_refused_by_name(
    settings: dict[str, Any], message: str, engine: TinyEngine
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        open_executor(engine.file, **settings)


def test_as_many_threads_as_it_may_use_are_the_default(engine: TinyEngine) -> None:
    made = NativeExecutor(engine.file, KVCacheConfig(4), ExecutorOptions("int8"))
    assert made.threads == _native.effective_threads()
    made.close()


def test_a_closed_executor_says_so(engine: TinyEngine, open_native: OpenExecutor) -> None:
    closed = open_native(engine.file)
    closed.close()
    with pytest.raises(InternalError, match="closed"):
        closed.execute([GOOD])
    closed.close()


RAW_OPTIONS: Mapping[str, Any] = {
    "instruction_set": "",
    "threads": 2,
    "cores": [],
    "kv_type": "float32",
    "num_blocks": 4,
    "block_size": 16,
    "integer_activations": True,
    "debug_nan": False,
    "profile": False,
}


@pytest.fixture(scope="module")
def raw(engine: TinyEngine) -> Callable[..., Any]:
    """Two sequences of two tokens straight into the C++ engine, with some arrays replaced."""
    with engine.file.path.open("rb") as file:
        weights = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    made = _native.Engine(weights, model_spec(engine.file), dict(RAW_OPTIONS))
    good = {
        "token_ids": [1, 2, 3, 4],
        "starts": [0, 0],
        "lengths": [2, 2],
        "block_ids": [0, 1],
        "table_starts": [0, 1, 2],
        "logit_rows": [0, 1, 2, 3],
    }

    def execute(**changes: list[int]) -> Any:
        arrays = {name: np.array(values, np.int32) for name, values in {**good, **changes}.items()}
        return made.execute(**arrays)

    return execute


BAD_ARRAYS: Mapping[str, dict[str, list[int]]] = {
    "fewer tokens than lengths say": {"token_ids": [1, 2, 3]},
    "more tokens than lengths say": {"token_ids": [1, 2, 3, 4, 5]},
    "no tokens": {"token_ids": []},
    "negative token": {"token_ids": [1, 2, -3, 4]},
    "token too large": {"token_ids": [1, 2, 3, 97]},
    "a start too few": {"starts": [0]},
    "a start too many": {"starts": [0, 0, 0]},
    "negative start": {"starts": [0, -2]},
    "start beyond the plan": {"starts": [0, 1023]},
    "start near the largest integer": {"starts": [0, 2**31 - 1]},
    "a length too few": {"lengths": [4]},
    "a zero length": {"lengths": [4, 0]},
    "a negative length": {"lengths": [6, -2]},
    "lengths that overflow together": {"lengths": [2**31 - 1, 2]},
    "negative block": {"block_ids": [0, -1]},
    "block too large": {"block_ids": [0, 4]},
    "fewer blocks than tables say": {"block_ids": [0]},
    "no blocks": {"block_ids": []},
    "a table start too few": {"table_starts": [0, 1]},
    "no table starts": {"table_starts": []},
    "a table that is too short": {"table_starts": [0, 0, 2]},
    "a table that starts before the first": {"table_starts": [-1000, 1, 2]},
    "a table far before the first": {"table_starts": [-(2**31), 1, 2]},
    "a table that goes backwards": {"table_starts": [0, 2, 1]},
    "a table that ends behind the last": {"table_starts": [0, 1, 1000]},
    "a table far behind the last": {"table_starts": [0, 1, 2**31 - 1]},
    "negative row": {"logit_rows": [-1]},
    "row behind the last": {"logit_rows": [4]},
    "more rows than tokens": {"logit_rows": [0, 1, 2, 3, 0]},
}


@pytest.mark.parametrize("bad", BAD_ARRAYS)
def test_arrays_that_disagree_are_refused(bad: str, raw: Callable[..., Any]) -> None:
    expected = raw().copy()
    with pytest.raises(ValueError, match=r"\S"):
        raw(**BAD_ARRAYS[bad])
    assert np.array_equal(raw(), expected)


def at_address(data: bytes, remainder: int) -> NDArray[np.uint8]:
    """The bytes in memory from an address that leaves `remainder` when divided by 64."""
    room = np.zeros(len(data) + 128, np.uint8)
    start = (remainder - room.ctypes.data) % 64
    room[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return room[start : start + len(data)]


@pytest.mark.parametrize("remainder", [1, 4, 16, 32])
def test_weights_that_kernels_can_not_read_in_lines_are_refused(remainder: int, engine: TinyEngine) -> None:
    weights = at_address(engine.file.path.read_bytes(), remainder)
    with pytest.raises(ValueError, match="address is not a multiple of 64"):
        _native.Engine(weights, model_spec(engine.file), dict(RAW_OPTIONS))


def test_weights_with_gaps_are_refused(engine: TinyEngine) -> None:
    weights = at_address(engine.file.path.read_bytes() * 2, 0)[::2]
    with pytest.raises(ValueError, match="bytes do not follow each other"):
        _native.Engine(weights, model_spec(engine.file), dict(RAW_OPTIONS))


@pytest.mark.parametrize("sizes", [(2**30, 32), (2**31 - 1, 2**31 - 16)])
def test_a_cache_that_32_bits_can_not_number_is_refused(sizes: tuple[int, int], engine: TinyEngine) -> None:
    weights = at_address(engine.file.path.read_bytes(), 0)
    options = {**RAW_OPTIONS, "num_blocks": sizes[0], "block_size": sizes[1]}
    with pytest.raises(ValueError, match="numbered with 32 bits"):
        _native.Engine(weights, model_spec(engine.file), options)
