"""The reference executor against transformers, and against itself however a step is cut up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gristmill.runtime.checkpoint import open_checkpoint
from gristmill.runtime.errors import InputError, UnsupportedError
from gristmill.runtime.executors.base import Executor, KVCacheConfig, SequenceStep
from gristmill.runtime.executors.reference.executor import ReferenceExecutor
from gristmill.runtime.executors.reference.paged import LayerCache, lay_out, paged_attention
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme

BLOCK = 4
CACHE = KVCacheConfig(num_blocks=64, block_size=BLOCK, dtype="float32")
MakeModel = Callable[[str], Any]


def random_tokens(seed: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 97, count)]


@pytest.fixture(scope="module")
def executor(tiny_model: MakeModel) -> Callable[[str], ReferenceExecutor]:
    """The float32 executor of a family, made once: its cache keeps what earlier tests left in it."""
    made: dict[str, ReferenceExecutor] = {}

    def make(family: str) -> ReferenceExecutor:
        if family not in made:
            made[family] = ReferenceExecutor(tiny_model(family).weights, CACHE, "float32")
        return made[family]

    return make


def test_logits_are_those_of_transformers(
    family: str, tiny_model: MakeModel, executor: Callable[[str], ReferenceExecutor]
) -> None:
    tokens = random_tokens(1, 60)
    logits = executor(family).execute([SequenceStep(tokens, 0, range(15), "all")])
    np.testing.assert_allclose(logits, tiny_model(family).logits(tokens), atol=1e-4, rtol=0)


def random_steps(
    sequences: list[list[int]], chunks: list[list[int]], rng: np.random.Generator
) -> Iterator[list[tuple[int, SequenceStep]]]:
    """Batches of (sequence, step) until all is done: shuffled blocks, some sequences a step, any order."""
    blocks = rng.permutation(CACHE.num_blocks)
    tables = [blocks[i * 14 : (i + 1) * 14].tolist() for i in range(len(sequences))]
    done, waiting = [0] * len(sequences), [list(sizes) for sizes in chunks]
    while any(waiting):
        ready = [i for i, sizes in enumerate(waiting) if sizes]
        chosen = rng.permutation(ready)[: rng.integers(1, len(ready) + 1)]
        batch = []
        for i in map(int, chosen):
            size = waiting[i].pop(0)
            tokens = sequences[i][done[i] : done[i] + size]
            batch.append((i, SequenceStep(tokens, done[i], tables[i], "all")))
            done[i] += size
        yield batch


@pytest.mark.parametrize(
    "name",
    [
        "llama with llama3 rope",
        "qwen3 with layer types",
        "mistral with a window",
        "qwen2 with experts and windows",
        "smollm3 with windows",
    ],
)
def test_any_chunking_batching_and_block_table_gives_the_whole_prompts_logits(
    name: str, tiny_model: MakeModel, executor: Callable[[str], ReferenceExecutor]
) -> None:
    @given(
        chunks=st.lists(
            st.lists(st.sampled_from([1, 1, 2, 5, 9]), min_size=1, max_size=6), min_size=1, max_size=4
        ),
        seed=st.integers(0, 2**16),
    )
    @settings(max_examples=20)
    def check(chunks: list[list[int]], seed: int) -> None:
        sequences = [random_tokens(seed + i, sum(sizes)) for i, sizes in enumerate(chunks)]
        rows: list[list[NDArray[np.float32]]] = [[] for _ in sequences]
        for batch in random_steps(sequences, chunks, np.random.default_rng(seed)):
            logits = executor(name).execute([step for _, step in batch])
            for index, step in batch:
                rows[index].extend(logits[: len(step.token_ids)].copy())
                logits = logits[len(step.token_ids) :]
        for tokens, found in zip(sequences, rows, strict=True):
            np.testing.assert_allclose(np.stack(found), tiny_model(name).logits(tokens), atol=1e-4, rtol=0)

    check()


def test_rows_come_in_batch_order_as_each_entry_asked(executor: Callable[[str], ReferenceExecutor]) -> None:
    run = executor("llama tied").execute
    tokens = random_tokens(3, 6)
    every = run([SequenceStep(tokens, 0, [0, 1], "all")]).copy()
    mixed = run(
        [
            SequenceStep(tokens, 0, [0, 1], "none"),
            SequenceStep(tokens[:3], 0, [5], "all"),
            SequenceStep(tokens, 0, [7, 3]),
        ]
    )
    np.testing.assert_allclose(mixed, every[[0, 1, 2, 5]], atol=1e-5)


def test_sequences_can_share_a_cached_prefix(executor: Callable[[str], ReferenceExecutor]) -> None:
    run = executor("llama tied").execute
    tokens = random_tokens(4, 10)
    whole = run([SequenceStep(tokens, 0, [0, 1, 2])]).copy()
    shared = run([SequenceStep(tokens[8:], 8, [0, 1, 9]), SequenceStep(tokens[8:], 8, [0, 1, 8])])
    np.testing.assert_allclose(shared, np.concatenate([whole, whole]), atol=1e-5)


def test_an_empty_batch_gives_no_rows(executor: Callable[[str], ReferenceExecutor]) -> None:
    assert executor("llama tied").execute([]).shape == (0, 97)


def test_logits_are_float32_numpy(executor: Callable[[str], ReferenceExecutor]) -> None:
    assert executor("llama tied").execute([SequenceStep([1], 0, [0])]).dtype == np.float32


def test_what_a_block_held_before_does_not_leak_into_its_next_owner(tiny_model: MakeModel) -> None:
    plan = tiny_model("llama tied").weights.plan
    attention = plan.layers[0].attention
    shape = (4, BLOCK, attention.num_kv_heads, attention.head_dim)
    batch = [SequenceStep([1], 4, [0, 1]), SequenceStep([1], 7, [2, 3])]
    q = torch.randn(2, attention.num_heads, attention.head_dim)
    k, v = (torch.randn(2, attention.num_kv_heads, attention.head_dim) for _ in range(2))
    mixed = []
    for stale in (0.0, float("inf")):
        ones = torch.ones(attention.num_kv_heads)
        cache = LayerCache("float32", torch.zeros(shape), torch.zeros(shape), ones, ones)
        cache.keys[1], cache.values[1] = stale, stale
        mixed.append(paged_attention(lay_out(batch, BLOCK), cache, attention, q, k, v))
    assert torch.equal(*mixed)


def test_quantized_weights_count_as_what_they_dequantize_to(tiny_model: MakeModel) -> None:
    source = tiny_model("llama untied").weights
    scheme = QuantScheme(4, 16, symmetric=False)
    rng = np.random.default_rng(0)
    quantized: dict[str, QuantizedTensor] = {}
    for linear in (*source.plan.linears, source.plan.head):
        shape = (linear.out_features, linear.in_features)
        groups = (shape[0], shape[1] // 16)
        codes = rng.integers(0, 16, shape, dtype=np.uint8)
        scales = rng.uniform(0.01, 0.1, groups).astype(np.float32)
        quantized[linear.name] = QuantizedTensor(scheme, codes, scales, np.full(groups, 7, dtype=np.uint8))
    dense = {f"{name}.weight": tensor.dequantize() for name, tensor in quantized.items()}
    packed = ReferenceExecutor(replace(source, quantized=quantized), CACHE, "float32")
    plain = ReferenceExecutor(replace(source, tensors={**source.tensors, **dense}), CACHE, "float32")
    step = [SequenceStep(random_tokens(5, 9), 0, range(3), "all")]
    assert np.array_equal(packed.execute(step), plain.execute(step))


def relative_error(found: NDArray[np.float32], exact: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def in_bfloat16(model: Any, tokens: list[int]) -> NDArray[np.float32]:
    executor = ReferenceExecutor(model.weights, replace(CACHE, dtype="bfloat16"))
    return executor.execute([SequenceStep(tokens, 0, range(10), "all")])


def test_bfloat16_compute_stays_near_float32(dense_family: str, tiny_model: MakeModel) -> None:
    model, tokens = tiny_model(dense_family), random_tokens(6, 40)
    assert relative_error(in_bfloat16(model, tokens), model.logits(tokens)) < 0.05


def test_bfloat16_compute_sends_most_tokens_to_the_same_experts(mixture: str, tiny_model: MakeModel) -> None:
    model, tokens = tiny_model(mixture), random_tokens(6, 40)
    pairs = zip(in_bfloat16(model, tokens), model.logits(tokens), strict=True)
    assert np.median([relative_error(found, exact) for found, exact in pairs]) < 0.05


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-5), ("float16", 2e-3), ("bfloat16", 2e-2)])
def test_the_cache_type_costs_only_its_rounding(dtype: Any, limit: float, tiny_model: MakeModel) -> None:
    tokens = random_tokens(7, 40)
    model = tiny_model("llama untied")
    executor = ReferenceExecutor(model.weights, replace(CACHE, dtype=dtype), "float32")
    logits = executor.execute([SequenceStep(tokens, 0, range(10), "all")])
    assert relative_error(logits, model.logits(tokens)) < limit


def test_chunks_read_the_rounded_keys_that_whole_prompts_read(tiny_model: MakeModel) -> None:
    tokens = random_tokens(8, 20)
    cache = replace(CACHE, dtype="bfloat16")
    executor = ReferenceExecutor(tiny_model("llama untied").weights, cache, "float32")
    whole = executor.execute([SequenceStep(tokens, 0, range(5))]).copy()
    executor.execute([SequenceStep(tokens[:11], 0, range(9, 12), "none")])
    chunked = executor.execute([SequenceStep(tokens[11:], 11, range(9, 14))])
    np.testing.assert_allclose(chunked, whole, atol=1e-4)


def test_soft_capped_attention_reads_the_cache_as_whole_prompts_do(tiny_model: MakeModel) -> None:
    source = tiny_model("llama untied").weights
    layers = tuple(
        replace(layer, attention=replace(layer.attention, logit_softcap=3.0)) for layer in source.plan.layers
    )
    executor = ReferenceExecutor(replace(source, plan=replace(source.plan, layers=layers)), CACHE, "float32")
    tokens = random_tokens(10, 20)
    whole = executor.execute([SequenceStep(tokens, 0, range(5))]).copy()
    executor.execute([SequenceStep(tokens[:19], 0, range(9, 14), "none")])
    decoded = executor.execute([SequenceStep(tokens[19:], 19, range(9, 14))])
    np.testing.assert_allclose(decoded, whole, atol=1e-4)


def test_a_checkpoint_folder_gives_the_logits_that_transformers_reads_from_it(tiny_llama: Path) -> None:
    from transformers import AutoModelForCausalLM

    tokens = [1, 5, 300, 49, 7, 2]
    oracle = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    expected = oracle(torch.tensor([tokens])).logits[0].detach().numpy()
    executor = ReferenceExecutor(open_checkpoint(tiny_llama), CACHE, "float32")
    logits = executor.execute([SequenceStep(tokens, 0, range(2), "all")])
    np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=0)


GOOD = SequenceStep([1, 2, 3, 4, 5], 0, [0, 1])
BAD_STEPS: Mapping[str, tuple[SequenceStep, str]] = {
    "no tokens": (replace(GOOD, token_ids=[]), "token ids; found none"),
    "token too large": (replace(GOOD, token_ids=[1, 97]), "token id; found 97; expected 0 to 96"),
    "negative token": (replace(GOOD, token_ids=[-1]), "token id; found -1"),
    "token not whole": (replace(GOOD, token_ids=[1.5]), "token ids"),  # type: ignore[list-item]
    "negative start": (replace(GOOD, start=-1), "positions; found -1 to 3; expected 0 to 255"),
    "past the last position": (replace(GOOD, start=252, block_table=range(64)), "found 252 to 256"),
    "short block table": (replace(GOOD, block_table=[0]), "block table; found 1 blocks; expected at least 2"),
    "block too large": (replace(GOOD, block_table=[0, 64]), "block; found 64; expected 0 to 63"),
    "negative block": (replace(GOOD, block_table=[-1, 0]), "block; found -1"),
    "one block twice": (replace(GOOD, block_table=[3, 3]), "block 3 is written twice"),
    "another's block": (replace(GOOD, block_table=[8, 7]), "block 8 is written twice"),
    "unknown rows": (replace(GOOD, logits="first"), "logits; found 'first'"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("bad", BAD_STEPS)
def test_a_step_outside_the_plan_or_the_cache_is_refused(
    bad: str, executor: Callable[[str], ReferenceExecutor]
) -> None:
    step, message = BAD_STEPS[bad]
    with pytest.raises(InputError) as refusal:
        executor("llama tied").execute([SequenceStep([1, 2], 0, [8]), step])
    assert str(refusal.value).startswith("batch entry 1: ")
    assert message in str(refusal.value)


def test_a_refused_step_writes_nothing(tiny_model: MakeModel) -> None:
    executor = ReferenceExecutor(tiny_model("llama tied").weights, CACHE, "float32")
    prompt = random_tokens(9, 8)
    executor.execute([SequenceStep(prompt, 0, [0, 1], "none")])
    before = executor.execute([SequenceStep([5], 8, [0, 1, 2])]).copy()
    with pytest.raises(InputError):
        executor.execute([SequenceStep([9] * 8, 0, [0, 1]), SequenceStep([97], 0, [5])])
    assert np.array_equal(executor.execute([SequenceStep([5], 8, [0, 1, 2])]), before)


def test_a_cache_type_it_does_not_have_is_refused_by_name(tiny_model: MakeModel) -> None:
    dtype: Any = "int3"
    with pytest.raises(UnsupportedError, match="KV cache dtype; found int3; expected float32, bfloat16"):
        ReferenceExecutor(tiny_model("llama tied").weights, replace(CACHE, dtype=dtype))


def test_a_compute_type_it_does_not_have_is_refused_by_name(tiny_model: MakeModel) -> None:
    compute: Any = "float16"
    with pytest.raises(UnsupportedError, match="compute dtype; found float16; expected bfloat16, float32"):
        ReferenceExecutor(tiny_model("llama tied").weights, CACHE, compute)


@pytest.mark.parametrize("change", [{"num_blocks": 0}, {"block_size": 0}])
def test_a_cache_without_room_is_refused(change: dict[str, Any], tiny_model: MakeModel) -> None:
    with pytest.raises(InputError, match="at least one of each"):
        ReferenceExecutor(tiny_model("llama tied").weights, replace(CACHE, **change))


def test_it_says_what_it_runs(tiny_model: MakeModel) -> None:
    executor: Executor = ReferenceExecutor(tiny_model("llama tied").weights, CACHE)
    assert (executor.info.name, executor.info.compute, executor.info.kv_cache) == (
        "reference",
        "bfloat16",
        "float32",
    )
    assert executor.cache == CACHE
    assert executor.plan == tiny_model("llama tied").weights.plan
