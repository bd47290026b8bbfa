"""The native executor gives the reference executor's logits: every family, scheme and instruction set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gristmill.runtime.checkpoint import open_checkpoint
from gristmill.runtime.executors.base import KVCacheConfig, KVDtype, SequenceStep
from gristmill.runtime.executors.reference.executor import ReferenceExecutor
from gristmill.runtime.kernels import _native
from gristmill.runtime.model_plan import ModelPlan
from tests.runtime.executors.native.tiny_engines import (
    BLOCK,
    NUM_BLOCKS,
    SCHEMES,
    SHAPES,
    OpenExecutor,
    RoundedHead,
    TinyEngine,
    WeightSource,
    all_rows,
    compiled,
    random_tokens,
    relative_error,
    write_tiny,
)

MakeEngine = Callable[[str, str], TinyEngine]
MakeFamily = Callable[[str], TinyEngine]

SETS = _native.instruction_sets()
CACHE = KVCacheConfig(NUM_BLOCKS, BLOCK, "float32")
TOKENS = 60

# The reference runs in float32 on the same weights, the head's rounding to int8 included. What is left
# is the rounding of inputs: at most 2^-9 of a value in bfloat16, 1/254 of a group's largest in int8.
# Float32 models round only the head's input. A wrong mask, angle or scale costs far more than this.
HEAD_INPUT_LIMIT = 0.0025
LIMITS = {"bfloat16": 0.015, "int8": 0.05}
# Key and value types against float32 ones; fp8 keeps 3 bits after the point, int4 15 steps a value.
KV_LIMITS = {"float32": 0.0, "bfloat16": 0.015, "float16": 0.005, "fp8": 0.15, "int8": 0.03, "int4": 0.35}


def reference(source: WeightSource, tokens: list[int]) -> NDArray[np.float32]:
    return all_rows(ReferenceExecutor(RoundedHead(source), CACHE, "float32"), tokens)


@pytest.mark.parametrize("instruction_set", SETS)
def test_every_family_gives_the_references_logits(
    family: str, instruction_set: str, family_engine: MakeFamily, open_native: OpenExecutor
) -> None:
    engine, tokens = family_engine(family), random_tokens(1, TOKENS)
    executor = open_native(engine.file, compute="bfloat16", instruction_set=instruction_set, threads=2)
    assert relative_error(all_rows(executor, tokens), reference(engine.source, tokens)) < HEAD_INPUT_LIMIT


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("compute", LIMITS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_gives_the_references_logits(
    scheme: str, compute: str, instruction_set: str, tiny_engine: MakeEngine, open_native: OpenExecutor
) -> None:
    engine, tokens = tiny_engine("shared key heads", scheme), random_tokens(2, TOKENS)
    executor = open_native(engine.file, compute=compute, instruction_set=instruction_set)
    error = relative_error(all_rows(executor, tokens), reference(engine.source, tokens))
    assert error < LIMITS[compute]


@dataclass(frozen=True)
class Capped:
    """Weights whose attention has a soft cap, which no family's configuration asks for yet."""

    source: WeightSource

    @property
    def plan(self) -> ModelPlan:
        layers = self.source.plan.layers
        capped = (replace(each, attention=replace(each.attention, logit_softcap=3.0)) for each in layers)
        return replace(self.source.plan, layers=tuple(capped))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)


@pytest.mark.parametrize(
    ("head_dim", "heads", "kv_heads"), [(80, 5, 1), (96, 3, 3), (112, 13, 1), (256, 2, 1)]
)
def test_sizes_that_fill_no_tile_give_the_references_logits(
    head_dim: int, heads: int, kv_heads: int, tmp_path: Path, open_native: OpenExecutor
) -> None:
    sizes = {"head_dim": head_dim, "num_attention_heads": heads, "num_key_value_heads": kv_heads}
    odd = {"hidden_size": 66, "intermediate_size": 50, "attention_bias": True, "tie_word_embeddings": False}
    window = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
    folder = write_tiny(tmp_path, "query and key norms", "4 bits a row", **sizes, **odd, **window)
    source, tokens = Capped(open_checkpoint(folder)), random_tokens(8, TOKENS)
    engine = replace(compiled(folder, tmp_path / "engine"), plan=source.plan)
    expected = reference(source, tokens)
    for compute, instruction_set in product(LIMITS, SETS):
        executor = open_native(engine, compute=compute, instruction_set=instruction_set)
        assert relative_error(all_rows(executor, tokens), expected) < LIMITS[compute], instruction_set


@pytest.mark.parametrize("shape", SHAPES)
def test_long_contexts_give_the_references_logits(
    shape: str, tiny_engine: MakeEngine, open_native: OpenExecutor
) -> None:
    engine, tokens = tiny_engine(shape, "mixed"), random_tokens(3, 600)
    executor = open_native(engine.file, compute="bfloat16", threads=2)
    error = relative_error(all_rows(executor, tokens), reference(engine.source, tokens))
    assert error < LIMITS["bfloat16"]


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("kv", KV_LIMITS)
def test_the_cache_type_costs_only_its_rounding(
    kv: str, instruction_set: str, family_engine: MakeFamily, open_native: OpenExecutor
) -> None:
    engine, tokens = family_engine("llama with biases").file, random_tokens(4, TOKENS)
    exact, found = (
        all_rows(open_native(engine, kv=dtype, instruction_set=instruction_set), tokens)
        for dtype in ("float32", kv)
    )
    assert relative_error(found, exact) <= KV_LIMITS[kv]


def test_rows_come_in_batch_order_as_each_entry_asked(
    tiny_engine: MakeEngine, open_native: OpenExecutor
) -> None:
    executor, tokens = open_native(tiny_engine("shared key heads", "mixed").file), random_tokens(5, 20)
    every = all_rows(executor, tokens)
    step = SequenceStep(tokens, 0, [0, 1], "none")
    batch = [step, replace(step, token_ids=tokens[:3], block_table=[5], logits="all")]
    mixed = executor.execute([*batch, replace(step, block_table=[7, 3], logits="last")])
    assert np.array_equal(mixed, every[[0, 1, 2, 19]])


def test_an_empty_batch_gives_no_rows(tiny_engine: MakeEngine, open_native: OpenExecutor) -> None:
    rows = open_native(tiny_engine("shared key heads", "plain").file).execute([])
    assert rows.shape == (0, 97)
    assert rows.dtype == np.float32


def test_a_step_without_rows_fills_the_cache(tiny_engine: MakeEngine, open_native: OpenExecutor) -> None:
    executor, tokens = open_native(tiny_engine("shared key heads", "plain").file), random_tokens(6, 20)
    expected = all_rows(executor, tokens)[-1:]
    assert executor.execute([SequenceStep(tokens[:19], 0, [8, 9], "none")]).shape == (0, 97)
    assert np.array_equal(executor.execute([SequenceStep(tokens[19:], 19, [8, 9])]), expected)


def test_blocks_that_a_step_does_not_reach_may_be_anything(
    tiny_engine: MakeEngine, open_native: OpenExecutor
) -> None:
    executor, tokens = open_native(tiny_engine("shared key heads", "plain").file), random_tokens(7, 20)
    spare = [4, 2, -1, NUM_BLOCKS, 2**40]
    assert np.array_equal(all_rows(executor, tokens, spare), all_rows(executor, tokens))


@pytest.mark.parametrize("units_per_block", [1, 3])
@pytest.mark.parametrize("kv", ["float32", "int8", "int4"])
def test_sequences_that_fill_every_block_of_the_cache_keep_their_bits(
    tiny_engine: MakeEngine, open_native: OpenExecutor, kv: KVDtype, units_per_block: int
) -> None:
    """21 units, the last one of the cache among them, in no order."""
    file = tiny_engine("shared key heads", "plain").file
    size = BLOCK * units_per_block
    blocks = 21 // units_per_block
    order = np.random.default_rng(8).permutation(blocks).tolist()
    tables = [order[: blocks // 2], order[blocks // 2 :]]
    sequences = [random_tokens(seed, len(table) * size) for seed, table in enumerate(tables)]
    spacious = open_native(file, kv=kv)
    expected = np.concatenate([all_rows(spacious, tokens) for tokens in sequences])
    full = open_native(file, kv=kv, blocks=blocks, block_size=size)
    together = zip(sequences, tables, strict=True)
    found = full.execute([SequenceStep(tokens, 0, table, "all") for tokens, table in together])
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("instruction_set", SETS)
def test_it_says_what_it_runs(
    instruction_set: str, tiny_engine: MakeEngine, open_native: OpenExecutor
) -> None:
    engine = tiny_engine("shared key heads", "mixed").file
    executor = open_native(engine, kv="fp8", threads=2, instruction_set=instruction_set)
    info: Any = executor.info
    assert (info.name, info.compute, info.kv_cache) == ("native-x86", "int8", "fp8")
    assert info.kernels["down"] == f"int8 g64 x int8 ({instruction_set})"
    assert info.kernels["o"] == f"bfloat16 x bfloat16 ({instruction_set})"
    assert executor.threads == 2
    assert executor.plan == engine.plan
