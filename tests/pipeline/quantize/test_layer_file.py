"""A finished layer comes back as it was, or is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gristmill.pipeline.quantize.block import BlockResult
from gristmill.pipeline.quantize.layer_file import LazyTensors, layer_path, read_layer, write_layer
from gristmill.runtime.errors import IntegrityError
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme


def a_tensor(*, symmetric: bool) -> QuantizedTensor:
    generator = np.random.default_rng(0)
    zeros = None if symmetric else generator.integers(0, 16, (6, 2), dtype=np.uint8)
    codes = generator.integers(0, 16, (6, 64), dtype=np.uint8)
    scales = generator.random((6, 2), dtype=np.float32)
    return QuantizedTensor(QuantScheme(4, 32, symmetric, scale_dtype="float32"), codes, scales, zeros)


def a_float4_tensor() -> QuantizedTensor:
    codes = np.arange(32, dtype=np.uint8).reshape(2, 16) % 16
    scheme = QuantScheme(4, 16, True, "float", "float8_e4m3fn")
    return QuantizedTensor(scheme, codes, np.array([[0.5], [2]], np.float32), global_scale=64.0)


@pytest.fixture
def result() -> BlockResult:
    quantized = {"a": a_tensor(symmetric=True), "b": a_tensor(symmetric=False), "c": a_float4_tensor()}
    return BlockResult(
        quantized,
        {"norm.weight": torch.arange(4).bfloat16()},
        {"a": 0.25, "b": 0.5},
        {"expert": 7},
        ("a note",),
    )


def assert_same(found: QuantizedTensor, expected: QuantizedTensor) -> None:
    assert (found.scheme, found.global_scale) == (expected.scheme, expected.global_scale)
    np.testing.assert_array_equal(found.codes, expected.codes)
    np.testing.assert_array_equal(found.dequantize(), expected.dequantize())


def test_a_layer_comes_back_as_it_was_written(tmp_path: Path, result: BlockResult) -> None:
    path = layer_path(tmp_path, 3)
    write_layer(path, result)
    found = read_layer(path)
    for name, tensor in result.quantized.items():
        assert_same(found.quantized[name], tensor)
    assert found.dense.keys() == result.dense.keys()
    assert torch.equal(found.dense["norm.weight"], result.dense["norm.weight"])
    assert (found.errors, found.routed, found.notes) == (result.errors, result.routed, result.notes)


def test_linears_are_read_one_by_one(tmp_path: Path, result: BlockResult) -> None:
    path = layer_path(tmp_path, 0)
    write_layer(path, result)
    lazy = LazyTensors({"a": path, "b": path})
    assert sorted(lazy) == ["a", "b"]
    assert_same(lazy["b"], result.quantized["b"])


def test_a_damaged_layer_is_refused_by_its_path(tmp_path: Path, result: BlockResult) -> None:
    path = layer_path(tmp_path, 0)
    write_layer(path, result)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(IntegrityError, match="layer-00000"):
        read_layer(path)
