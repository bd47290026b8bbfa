"""Mixtures of experts on the native engine: the reference's choice of experts, and its logits."""

from __future__ import annotations

import functools
import mmap
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from gristmill.runtime.checkpoint import open_checkpoint
from gristmill.runtime.errors import InternalError
from gristmill.runtime.executors.base import KVCacheConfig, SequenceStep
from gristmill.runtime.executors.native.executor import NativeExecutor
from gristmill.runtime.executors.native.model_spec import model_spec
from gristmill.runtime.executors.native.stored import EngineFile, StoredMixture, StoredMixtureLayer
from gristmill.runtime.executors.reference.executor import ReferenceExecutor
from gristmill.runtime.kernels import _native
from gristmill.runtime.model_plan import MoePlan
from tests.runtime.executors.native.test_diagnostics import damaged, first_scale
from tests.runtime.executors.native.test_native_executor import HEAD_INPUT_LIMIT, LIMITS
from tests.runtime.executors.native.test_refusals import RAW_OPTIONS
from tests.runtime.executors.native.tiny_engines import (
    BLOCK,
    MIXTURES,
    NUM_BLOCKS,
    OpenExecutor,
    RoundedHead,
    TinyEngine,
    all_rows,
    compiled,
    random_tokens,
    relative_error,
    write_tiny,
)

MakeEngine = Callable[[str, str], TinyEngine]

SETS = _native.instruction_sets()
CACHE = KVCacheConfig(NUM_BLOCKS, BLOCK, "float32")
SCHEMES = ("plain", "4 bits, groups of 32, zero points", "8 bits, groups of 32", "mixed")
TOKENS = random_tokens(1, 60)


@pytest.fixture(scope="module")
def reference_rows(tiny_engine: MakeEngine) -> Callable[[str, str], NDArray[np.float32]]:
    """The reference's logits of `TOKENS` by shape and scheme, computed once."""

    @functools.cache
    def rows(shape: str, scheme: str) -> NDArray[np.float32]:
        source = RoundedHead(tiny_engine(shape, scheme).source)
        return all_rows(ReferenceExecutor(source, CACHE, "float32"), TOKENS)

    return rows


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("compute", LIMITS)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("shape", MIXTURES)
def test_every_mixture_gives_the_references_logits(
    shape: str,
    scheme: str,
    compute: str,
    instruction_set: str,
    tiny_engine: MakeEngine,
    reference_rows: Callable[[str, str], NDArray[np.float32]],
    open_native: OpenExecutor,
) -> None:
    engine = tiny_engine(shape, scheme).file
    executor = open_native(engine, compute=compute, instruction_set=instruction_set, threads=2)
    assert relative_error(all_rows(executor, TOKENS), reference_rows(shape, scheme)) < LIMITS[compute]


def first_mixture(engine: EngineFile) -> tuple[int, StoredMixture]:
    """The first layer with experts, by index."""
    return next(
        (index, layer.mixture)
        for index, layer in enumerate(engine.layers)
        if isinstance(layer, StoredMixtureLayer)
    )


Change = Callable[[NDArray[Any], NDArray[Any]], object]


@pytest.fixture
def routed(tmp_path: Path) -> Callable[..., TinyEngine]:
    """A float32 mixture, its embedding and routers changed in place: only the head's input is rounded."""

    def make(shape: str, change: Change, **changes: Any) -> TinyEngine:
        folder = write_tiny(tmp_path, shape, "plain", dtype="float32", **changes)
        tensors = load_file(folder / "model.safetensors")
        for layer in open_checkpoint(folder).plan.layers:
            if isinstance(layer.mlp, MoePlan):
                change(tensors["model.embed_tokens.weight"], tensors[layer.mlp.router.weight])
        save_file(tensors, folder / "model.safetensors")
        return TinyEngine(compiled(folder, tmp_path / "engine"), open_checkpoint(folder))

    return make


def tie(embedding: NDArray[Any], router: NDArray[Any]) -> None:
    router[:] = 0


def leave_one_share(embedding: NDArray[Any], router: NDArray[Any]) -> None:
    router *= 1e4


def send_all_to_the_last(embedding: NDArray[Any], router: NDArray[Any]) -> None:
    embedding[:, 0] = 2
    router[:] = 0
    router[:, 0] = np.linspace(-3, 3, len(router))


ROUTINGS: Mapping[str, Change] = {
    "ties": tie,
    "shares of zero": leave_one_share,
    "the last experts for all tokens": send_all_to_the_last,
}


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("top_k", [1, 2, 4, 6])
def test_whatever_the_router_chooses_is_what_the_reference_takes(
    routing: str, top_k: int, routed: Callable[..., TinyEngine], open_native: OpenExecutor
) -> None:
    engine = routed("qwen3 with experts", ROUTINGS[routing], num_experts_per_tok=top_k)
    expected = all_rows(ReferenceExecutor(RoundedHead(engine.source), CACHE, "float32"), TOKENS)
    found = all_rows(open_native(engine.file, compute="bfloat16", threads=2), TOKENS)
    assert relative_error(found, expected) < HEAD_INPUT_LIMIT


def routed_rows(executor: NativeExecutor, count: int) -> NDArray[np.float32]:
    """Logits of `TOKENS` in steps of `count` tokens."""
    steps = range(0, len(TOKENS), count)
    rows = [
        executor.execute([SequenceStep(TOKENS[first : first + count], first, range(4), "all")]).copy()
        for first in steps
    ]
    return np.concatenate(rows)


@pytest.mark.parametrize("count", [1, 7, 8, 9])
def test_choosing_together_or_by_token_changes_no_bit(
    count: int, tiny_engine: MakeEngine, open_native: OpenExecutor
) -> None:
    executor = open_native(tiny_engine("qwen2 with experts", "mixed").file, threads=2)
    expected = all_rows(executor, TOKENS)
    assert np.array_equal(routed_rows(executor, count), expected)


@pytest.mark.parametrize("part", ["gate_up", "down"])
def test_an_experts_scale_that_is_not_a_number_is_traced_to_its_layer(
    part: str, tiny_engine: MakeEngine, open_native: OpenExecutor, tmp_path: Path
) -> None:
    engine = tiny_engine("qwen3 with experts", "4 bits, groups of 64").file
    index, mixture = first_mixture(engine)
    bad = damaged(engine, first_scale(getattr(mixture.experts[2], part)), tmp_path)
    executor = open_native(bad, debug_nan=True, threads=2)
    with pytest.raises(InternalError, match=f"the output of layer {index} is not finite"):
        executor.execute([SequenceStep(TOKENS, 0, range(4))])


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_router_that_is_not_finite_is_traced_to_its_layer(
    number: float, tiny_engine: MakeEngine, open_native: OpenExecutor, tmp_path: Path
) -> None:
    engine = tiny_engine("qwen3 with experts", "plain").file
    index, mixture = first_mixture(engine)
    data = np.fromfile(engine.path, np.float32)
    data[mixture.router.offset // 4] = number
    data.tofile(tmp_path / "weights.bin")
    bad = replace(engine, path=tmp_path / "weights.bin")
    executor = open_native(bad, debug_nan=True, threads=2)
    with pytest.raises(InternalError, match=f"the output of layer {index} is not finite"):
        executor.execute([SequenceStep(TOKENS, 0, range(4))])


def test_late_threads_take_nothing_from_layers_that_are_over(
    tiny_engine: MakeEngine, open_native: OpenExecutor
) -> None:
    engine = tiny_engine("mixtral", "mixed").file
    batch = [SequenceStep(TOKENS[:5], 0, [0]), SequenceStep(TOKENS[:1], 0, [1])]
    expected = open_native(engine, threads=1).execute(batch).copy()
    crowded = open_native(engine, threads=4 * _native.effective_threads())
    for _ in range(1000):
        assert np.array_equal(crowded.execute(batch), expected)


def test_it_says_what_runs_in_dense_and_in_sparse_layers(
    tiny_engine: MakeEngine, open_native: OpenExecutor
) -> None:
    executor = open_native(tiny_engine("qwen2 with experts", "mixed").file, profile=True)
    kernels: Any = executor.info.kernels
    of = {name: kernel.rpartition(" ")[0] for name, kernel in kernels.items()}
    assert of["router"] == "float32 x float32"
    assert of["gate_up"] == of["experts_gate_up"] == "int4 g32 asym x int8"
    assert of["down"] == "int8 g64 x int8"
    executor.execute([SequenceStep(TOKENS, 0, range(4))])
    seconds = executor.profile()
    names = ("router", "experts_gate_up", "experts_down", "experts_sum", "gate_up", "down")
    assert all(seconds[name] > 0 for name in names)


def set_entry(path: str, value: Any) -> Callable[[Any], None]:
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]

    def change(spec: Any) -> None:
        for key in parents:
            spec = spec[key]
        spec[last] = value(spec[last]) if callable(value) else value

    return change


BAD_MIXTURES: Mapping[str, tuple[str, Any]] = {
    "no experts": ("experts", []),
    "an expert too few for the router": ("experts", lambda experts: experts[1:]),
    "no expert a token": ("top_k", 0),
    "more experts a token than there are": ("top_k", 7),
    "a negative number of experts a token": ("top_k", -(2**31)),
    "a gate that nothing is behind": ("shared", False),
    "a gate that the router lacks": ("shared_gate", False),
    "a router that is narrower": ("router.columns", 32),
    "a router with more rows": ("router.rows", 96),
    "a router of another kind": ("router.kind", "bfloat16"),
    "a router in fewer bytes": ("router.bytes", 64),
    "an expert of no channels": ("experts.2.intermediate_size", 0),
    "an expert of fewer channels": ("experts.2.intermediate_size", 64),
    "an expert of more channels": ("experts.2.intermediate_size", 144),
    "an expert of too many channels": ("experts.2.intermediate_size", 2**31 - 1),
    "an expert with fewer rows": ("experts.2.gate_up.rows", 128),
    "an expert in fewer bytes": ("experts.2.gate_up.bytes", lambda size: size - 64),
    "an expert beyond the file": ("experts.2.gate_up.offset", 2**40),
    "groups that do not divide the columns": ("experts.2.gate_up.group", 96),
    "groups of nothing": ("experts.2.gate_up.group", 0),
    "an output that is narrower": ("experts.2.down.outputs", [50]),
    "a down projection that is narrower": ("experts.2.down.columns", 32),
    "a shared expert of more channels": ("experts.6.intermediate_size", 80),
}


@pytest.mark.parametrize("bad", BAD_MIXTURES)
def test_a_mixture_whose_sizes_disagree_is_refused(bad: str, tiny_engine: MakeEngine) -> None:
    engine = tiny_engine("qwen2 with experts", "mixed").file
    with engine.path.open("rb") as file:
        weights = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    _native.Engine(weights, model_spec(engine), dict(RAW_OPTIONS))
    spec = model_spec(engine)
    set_entry(*BAD_MIXTURES[bad])(spec["layers"][0]["mixture"])
    with pytest.raises(ValueError, match=r"\S"):
        _native.Engine(weights, spec, dict(RAW_OPTIONS))
