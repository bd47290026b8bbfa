"""A sequence's logits are the same bits whatever is computed beside it, and however it is cut up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gristmill.runtime.executors.base import SequenceStep
from gristmill.runtime.executors.native.executor import NativeExecutor
from gristmill.runtime.kernels import _native
from tests.runtime.executors.native.tiny_engines import (
    BLOCK,
    KV_TYPES,
    NUM_BLOCKS,
    SHAPES,
    OpenExecutor,
    TinyEngine,
    all_rows,
    open_executor,
    random_tokens,
)

MakeEngine = Callable[[str, str], TinyEngine]
Executors = Callable[..., NativeExecutor]

SETS = _native.instruction_sets()
# Around the cache's unit of 16 tokens, and attention's spans of 256.
LENGTHS = st.one_of(st.integers(1, 40), st.integers(250, 262), st.integers(505, 530), st.just(700))
CHUNKS = (1, 1, 1, 2, 3, 4, 5, 8, 16, 17, 40, 130, 300)
MOST_PREEMPTIONS = 3


@pytest.fixture(scope="module")
def executors(tiny_engine: MakeEngine) -> Iterator[Executors]:
    """Executors by engine and settings, each made once: their caches keep what earlier runs left there."""
    made: dict[tuple[Any, ...], NativeExecutor] = {}

    def make(shape: str, scheme: str, **settings: Any) -> NativeExecutor:
        key = (shape, scheme, *sorted(settings.items()))
        if key not in made:
            made[key] = open_executor(tiny_engine(shape, scheme).file, **settings)
        return made[key]

    yield make
    for executor in made.values():
        executor.close()


@dataclass(slots=True)
class Running:
    """A sequence, the rows that it must give, and how far it is."""

    tokens: list[int]
    expected: NDArray[np.float32]
    done: int = 0
    table: list[int] = field(default_factory=list)


class Blocks:
    """The free blocks in random order, and how many sequences hold each of the others."""

    def __init__(self, random: np.random.Generator) -> None:
        self._free = random.permutation(NUM_BLOCKS).tolist()
        self._holders: Counter[int] = Counter()

    def extend(self, running: Running, tokens: int) -> None:
        while len(running.table) * BLOCK < tokens:
            self.hold(running, self._free.pop())

    def hold(self, running: Running, block: int) -> None:
        self._holders[block] += 1
        running.table.append(block)

    def give_back(self, running: Running) -> None:
        for block in running.table:
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free.append(block)
        running.table, running.done = [], 0


def share_prefix(running: Running, first: Running, blocks: Blocks) -> None:
    """Start `running` on the full blocks that `first` has computed of their common beginning."""
    common = 0
    for ours, theirs in zip(running.tokens[:-1], first.tokens[: first.done], strict=False):
        if ours != theirs:
            break
        common += 1
    for block in first.table[: common // BLOCK]:
        blocks.hold(running, block)
    running.done = common // BLOCK * BLOCK


def run_schedule(executor: NativeExecutor, sequences: Sequence[Running], seed: int) -> None:
    """Random mixed batches until all is done, with preemptions and shared prefixes; checks every row."""
    random = np.random.default_rng(seed)
    blocks, preemptions = Blocks(random), 0
    while waiting := [running for running in sequences if running.done < len(running.tokens)]:
        chosen = [
            waiting[i] for i in random.permutation(len(waiting))[: random.integers(1, len(waiting) + 1)]
        ]
        batch: list[SequenceStep] = []
        for running in chosen:
            if not running.table and running is not sequences[0]:
                share_prefix(running, sequences[0], blocks)
            end = min(running.done + int(random.choice(CHUNKS)), len(running.tokens))
            blocks.extend(running, end)
            batch.append(SequenceStep(running.tokens[running.done : end], running.done, running.table, "all"))
        rows = executor.execute(batch)
        for running, step in zip(chosen, batch, strict=True):
            end = running.done + len(step.token_ids)
            np.testing.assert_array_equal(rows[: len(step.token_ids)], running.expected[running.done : end])
            rows, running.done = rows[len(step.token_ids) :], end
        if preemptions < MOST_PREEMPTIONS and random.random() < 0.15:
            blocks.give_back(sequences[int(random.integers(len(sequences)))])
            preemptions += 1


def check_schedules(alone: NativeExecutor, shared: NativeExecutor, max_examples: int) -> None:
    """Sequences in `shared`, in whatever company, give the bits that each gives alone in `alone`."""

    @given(lengths=st.lists(LENGTHS, min_size=1, max_size=4), seed=st.integers(0, 2**16))
    @settings(max_examples=max_examples)
    def check(lengths: list[int], seed: int) -> None:
        prefix = random_tokens(seed, lengths[0] * 2 // 3)
        prompts = [
            (prefix + random_tokens(seed + i, length))[:length] for i, length in enumerate(lengths, start=1)
        ]
        run_schedule(shared, [Running(prompt, all_rows(alone, prompt)) for prompt in prompts], seed)

    check()


@pytest.mark.parametrize("kv", KV_TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_no_schedule_changes_a_bit(shape: str, kv: str, executors: Executors) -> None:
    alone = executors(shape, "mixed", kv=kv, threads=1)
    check_schedules(alone, executors(shape, "mixed", kv=kv, threads=2), max_examples=5)


@pytest.mark.parametrize("compute", ["int8", "bfloat16"])
@pytest.mark.parametrize("scheme", ["plain", "4 bits, groups of 64, zero points", "8 bits, groups of 32"])
def test_no_schedule_changes_a_bit_of_any_weights(scheme: str, compute: str, executors: Executors) -> None:
    alone = executors("shared key heads", scheme, compute=compute, kv="bfloat16", threads=2)
    shared = executors("shared key heads", scheme, compute=compute, kv="bfloat16", threads=1)
    check_schedules(alone, shared, max_examples=4)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("compute", ["int8", "bfloat16"])
def test_no_schedule_changes_a_bit_on_any_instruction_set(
    instruction_set: str, compute: str, executors: Executors
) -> None:
    chosen = {"instruction_set": instruction_set, "compute": compute, "kv": "int8"}
    alone = executors("a window", "mixed", threads=1, **chosen)
    check_schedules(alone, executors("a window", "mixed", threads=2, **chosen), max_examples=3)


@pytest.mark.parametrize("instruction_set", SETS)
def test_no_schedule_changes_a_bit_of_a_mixture(instruction_set: str, executors: Executors) -> None:
    for compute in ("int8", "bfloat16"):
        chosen = {"instruction_set": instruction_set, "compute": compute, "kv": "bfloat16"}
        alone = executors("qwen2 with experts", "mixed", threads=1, **chosen)
        shared = executors("qwen2 with experts", "mixed", threads=2, **chosen)
        check_schedules(alone, shared, max_examples=2 if instruction_set == "scalar" else 4)


@pytest.mark.parametrize("instruction_set", SETS)
def test_float32_models_are_no_exception(
    instruction_set: str, family_engine: Callable[[str], TinyEngine], open_native: OpenExecutor
) -> None:
    engine = family_engine("llama with biases").file
    alone, shared = (
        open_native(engine, instruction_set=instruction_set, compute="bfloat16", threads=threads)
        for threads in (1, 2)
    )
    prompts = [random_tokens(seed, length) for seed, length in enumerate((40, 17, 250))]
    for seed in range(3):
        run_schedule(shared, [Running(prompt, all_rows(alone, prompt)) for prompt in prompts], seed)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_decoding_gives_the_bits_of_a_prefill(shape: str, threads: int, executors: Executors) -> None:
    tokens = random_tokens(1, 530)
    expected = all_rows(executors(shape, "mixed", kv="bfloat16", threads=1), tokens)
    executor = executors(shape, "mixed", kv="bfloat16", threads=threads)
    table = np.random.default_rng(0).permutation(NUM_BLOCKS)[: -(-len(tokens) // BLOCK)].tolist()
    for position, token in enumerate(tokens):
        row = executor.execute([SequenceStep([token], position, table)])[0]
        assert np.array_equal(row, expected[position]), position


@pytest.mark.parametrize("block_size", [16, 32, 48, 256])
def test_the_block_size_changes_nothing(
    block_size: int, tiny_engine: MakeEngine, open_native: OpenExecutor, executors: Executors
) -> None:
    tokens = random_tokens(2, 300)
    expected = all_rows(executors("shared key heads", "mixed", kv="int4"), tokens)
    engine = tiny_engine("shared key heads", "mixed").file
    executor = open_native(engine, kv="int4", blocks=24, block_size=block_size)
    table = [*range(23, -1, -2), *range(0, 24, 2)][: -(-300 // block_size)]
    assert np.array_equal(all_rows(executor, tokens, table), expected)


def test_a_shared_prefix_serves_two_sequences_at_once(executors: Executors) -> None:
    run = executors("shared key heads", "mixed", kv="bfloat16", threads=2)
    prefix, tails = random_tokens(3, 512), [random_tokens(seed, 20) for seed in (4, 5)]
    expected = [all_rows(run, prefix + tail)[512:] for tail in tails]
    run.execute([SequenceStep(prefix, 0, range(32), "none")])
    steps = [
        SequenceStep(tail, 512, [*range(32), 40 + 2 * i, 41 + 2 * i], "all") for i, tail in enumerate(tails)
    ]
    assert np.array_equal(run.execute(steps), np.concatenate(expected))


def test_the_rows_that_are_asked_for_change_no_other(executors: Executors) -> None:
    run = executors("query and key norms", "mixed", kv="bfloat16", threads=2)
    tokens = random_tokens(6, 70)
    expected = all_rows(run, tokens)
    others = [SequenceStep(random_tokens(7, 9), 0, [20], "none"), SequenceStep([3], 0, [21])]
    last = run.execute([others[0], SequenceStep(tokens, 0, range(5)), others[1]])
    assert np.array_equal(last[0], expected[-1])
