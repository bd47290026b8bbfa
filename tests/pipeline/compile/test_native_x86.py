"""A compiled engine holds the checkpoint's weights: exactly, in equal bytes, whole or not at all."""

from __future__ import annotations

import os
import signal
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from gristmill.pipeline.compile.native_x86 import compile_native
from gristmill.runtime.checkpoint import open_checkpoint
from gristmill.runtime.errors import ArtifactError, StorageError, UnsupportedError
from gristmill.runtime.executors.native.engine_file import (
    PLAN_FILE,
    WEIGHTS_FILE,
    EngineFile,
    StoredTensor,
    read_engine_file,
    verify_engine_file,
)
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme

MakeCheckpoint = Callable[..., Path]
EngineArrays = Callable[[EngineFile], dict[str, NDArray[Any]]]
HeadRows = Callable[[EngineFile], NDArray[np.float32]]
ReadTensor = Callable[[EngineFile, StoredTensor], NDArray[Any]]


def expected_arrays(folder: Path) -> dict[str, NDArray[np.float32]]:
    """Every tensor of the checkpoint's blocks, as float32."""
    checkpoint = open_checkpoint(folder)
    arrays = {}
    linears = {linear.weight: linear for linear in checkpoint.plan.linears}
    for name in (name for layer in checkpoint.plan.layers for name in layer.tensor_shapes()):
        weight = checkpoint.weight(linears[name]) if name in linears else checkpoint.tensor(name)
        dense = weight.dequantize() if isinstance(weight, QuantizedTensor) else weight.astype(np.float32)
        arrays[name] = dense
    return arrays


def assert_same(found: dict[str, NDArray[Any]], expected: dict[str, NDArray[np.float32]]) -> None:
    assert set(found) == set(expected)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def compiled(checkpoint: Path, out: Path) -> EngineFile:
    compile_native(checkpoint, out)
    return verify_engine_file(out)


def test_every_family_keeps_its_plain_weights(
    family: str, make_checkpoint: MakeCheckpoint, tmp_path: Path, engine_arrays: EngineArrays
) -> None:
    checkpoint = make_checkpoint(family)
    engine = compiled(checkpoint, tmp_path / "engine")
    assert engine.plan == open_checkpoint(checkpoint).plan
    kinds = {name: weight.kind for layer in engine.layers for name, weight in layer.weights.items()}
    assert kinds.pop("mixture.router", "float32") == "float32"
    assert set(kinds.values()) == {"bfloat16"}
    assert_same(engine_arrays(engine), expected_arrays(checkpoint))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_weights_of_other_types_are_kept_in_float32(
    dtype: str, make_checkpoint: MakeCheckpoint, tmp_path: Path, engine_arrays: EngineArrays
) -> None:
    checkpoint = make_checkpoint("qwen2", dtype=dtype)
    engine = compiled(checkpoint, tmp_path / "engine")
    assert engine.layers[0].qkv.kind == engine.embedding.dtype == "float32"
    assert_same(engine_arrays(engine), expected_arrays(checkpoint))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group_size", [32, -1])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 8])
def test_every_quantized_weight_keeps_its_value(
    bits: int,
    group_size: int,
    symmetric: bool,
    make_checkpoint: MakeCheckpoint,
    tmp_path: Path,
    engine_arrays: EngineArrays,
) -> None:
    scheme = QuantScheme(bits, group_size, symmetric)
    checkpoint = make_checkpoint("llama with biases", lambda name: scheme)
    engine = compiled(checkpoint, tmp_path / "engine")
    for layer in engine.layers:
        for weight in layer.weights.values():
            assert weight.kind == ("int4" if bits <= 4 else "int8")
            assert weight.zero_points != symmetric
            assert weight.group == (weight.columns if group_size == -1 else group_size)
    assert_same(engine_arrays(engine), expected_arrays(checkpoint))


@pytest.mark.parametrize("symmetric", [True, False])
def test_sizes_that_are_no_multiples_of_32_are_padded(
    symmetric: bool, make_checkpoint: MakeCheckpoint, tmp_path: Path, engine_arrays: EngineArrays
) -> None:
    scheme = QuantScheme(4, -1, symmetric)
    checkpoint = make_checkpoint("llama with odd sizes", lambda name: scheme)
    engine = compiled(checkpoint, tmp_path / "engine")
    assert (engine.layers[0].qkv.columns, engine.layers[0].weights["down"].columns) == (64, 96)
    assert_same(engine_arrays(engine), expected_arrays(checkpoint))


def test_scales_that_float16_rounds_are_kept_in_float32(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, engine_arrays: EngineArrays
) -> None:
    scheme = QuantScheme(4, 32, symmetric=True, scale_dtype="float32")
    checkpoint = make_checkpoint(scheme_of=lambda name: scheme, dtype="float32")
    engine = compiled(checkpoint, tmp_path / "engine")
    assert engine.layers[0].weights["gate_up"].kind == "int8"
    assert_same(engine_arrays(engine), expected_arrays(checkpoint))


def test_parts_of_one_weight_with_different_schemes_stay_exact(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, engine_arrays: EngineArrays
) -> None:
    schemes = {
        "q_proj": QuantScheme(4, 64, symmetric=True),
        "k_proj": QuantScheme(3, 32, symmetric=False),
        "v_proj": QuantScheme(8, -1, symmetric=True),
        "gate_proj": QuantScheme(2, 64, symmetric=True),
        "up_proj": QuantScheme(4, 32, symmetric=True),
    }
    checkpoint = make_checkpoint(scheme_of=lambda name: schemes.get(name.rpartition(".")[2]))
    engine = compiled(checkpoint, tmp_path / "engine")
    qkv, _, gate_up, down = engine.layers[0].weights.values()
    assert (qkv.kind, qkv.group, qkv.zero_points) == ("int8", 32, True)
    assert (gate_up.kind, gate_up.group, gate_up.zero_points) == ("int4", 32, False)
    assert down.kind == "bfloat16"
    assert_same(engine_arrays(engine), expected_arrays(checkpoint))


def test_groups_that_the_layout_lacks_are_dequantized_to_the_models_type(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, engine_arrays: EngineArrays
) -> None:
    checkpoint = make_checkpoint(scheme_of=lambda name: QuantScheme(4, 16, symmetric=True))
    engine = compiled(checkpoint, tmp_path / "engine")
    assert engine.layers[1].o.kind == "bfloat16"
    rounded = {
        name: array.astype(ml_dtypes.bfloat16).astype(np.float32)
        for name, array in expected_arrays(checkpoint).items()
    }
    assert_same(engine_arrays(engine), rounded)


@pytest.mark.parametrize("tying", ["tied", "untied"])
def test_the_head_is_rounded_to_8_bits_a_row(
    tying: str, make_checkpoint: MakeCheckpoint, tmp_path: Path, head_rows: HeadRows
) -> None:
    checkpoint = open_checkpoint(make_checkpoint(f"llama {tying}"))
    engine = compiled(checkpoint.folder, tmp_path / "engine")
    exact = checkpoint.tensor(checkpoint.plan.head_weight).astype(np.float32)
    step = np.abs(exact).max(axis=1, keepdims=True) / 127
    assert (engine.head.kind, engine.head.group) == ("int8", engine.head.columns)
    assert (np.abs(head_rows(engine) - exact) < step * 0.501).all()
    np.testing.assert_allclose(np.abs(head_rows(engine)).max(axis=1), step[:, 0] * 127, rtol=1e-6)


def test_embedding_and_final_norm_are_the_checkpoints(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, read_tensor: ReadTensor
) -> None:
    checkpoint = open_checkpoint(make_checkpoint())
    engine = compiled(checkpoint.folder, tmp_path / "engine")
    for stored, name in ((engine.embedding, "model.embed_tokens"), (engine.final_norm, "model.norm")):
        tensor = checkpoint.tensor(f"{name}.weight").astype(np.float32)
        np.testing.assert_array_equal(read_tensor(engine, stored).astype(np.float32), tensor)


def test_equal_checkpoints_give_equal_bytes(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    checkpoint = make_checkpoint("qwen2", lambda name: QuantScheme(4, 32, symmetric=False))
    compile_native(checkpoint, tmp_path / "one")
    (tmp_path / "two").mkdir()
    compile_native(checkpoint, tmp_path / "two")
    for name in (PLAN_FILE, WEIGHTS_FILE):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_progress_counts_layers(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    compile_native(make_checkpoint(), tmp_path / "engine", lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]


def test_memory_does_not_grow_with_the_number_of_layers(
    make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 12}
    checkpoint = make_checkpoint(scheme_of=lambda name: QuantScheme(4, 64, symmetric=True), **sizes)
    tracemalloc.start()
    try:
        compile_native(checkpoint, tmp_path / "engine")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    fused = 2 * 256 * 1024  # the codes of gate and up
    assert peak < 6 * fused < read_engine_file(tmp_path / "engine").bytes


def test_an_interrupt_leaves_no_file_behind(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_native(make_checkpoint(), tmp_path / "engine", interrupt)
    assert list((tmp_path / "engine").iterdir()) == []


def test_a_killed_compile_leaves_a_whole_engine_or_none(
    make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    checkpoint = make_checkpoint()
    whole = 0
    for step in range(1, 100):
        out = tmp_path / f"engine-{step}"
        if _killed_before(step, checkpoint, out) == 0:
            break
        try:
            verify_engine_file(out)
            whole += 1
        except ArtifactError as error:
            assert "missing" in str(error)  # noqa: PT017
    assert step > 5
    assert whole
    verify_engine_file(out)


def _killed_before(step: int, checkpoint: Path, out: Path) -> int:
    """The wait status of a compiling process that is killed before its operation number `step` on `out`."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _kill_before(step, out)
            compile_native(checkpoint, out)
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status


def _kill_before(step: int, out: Path) -> None:
    seen = 0
    operations = {"open", "os.mkdir", "os.rename", "os.remove"}

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if event in operations and any(str(out) in str(argument) for argument in arguments[:2]):
            seen += 1
            if seen == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def test_an_engine_is_written_over_an_older_one(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    out = tmp_path / "engine"
    out.mkdir()
    (out / PLAN_FILE).write_text("{}")
    (out / WEIGHTS_FILE).write_bytes(b"old")
    compiled(make_checkpoint(), out)


def test_a_place_that_can_not_be_written_is_named(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    (tmp_path / "engine").write_text("a file")
    with pytest.raises(StorageError, match="engine"):
        compile_native(make_checkpoint(), tmp_path / "engine")


def test_heads_that_are_too_wide_for_the_kernels_are_refused(
    make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    checkpoint = make_checkpoint("qwen3", head_dim=320)
    with pytest.raises(UnsupportedError, match=r"head_dim; found 320; expected at most 256"):
        compile_native(checkpoint, tmp_path / "engine")
