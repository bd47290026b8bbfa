"""Files are what the safetensors library reads, whole or absent, and never hold two tensors in memory."""

from __future__ import annotations

import resource
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from gristmill.runtime.errors import InternalError, StorageError
from gristmill.runtime.safetensors_files import DTYPES, read_header
from gristmill.runtime.safetensors_writer import TensorSpec, write_safetensors
from gristmill.runtime.sources.base import Tensor

TENSORS: dict[str, Tensor] = {
    "half": np.arange(3, dtype=np.float16),
    "words": np.arange(5, dtype=np.int32).reshape(5, 1),
    "shape": np.array([3, 1], np.int64),
    "none": np.zeros((0, 4), np.float32),
    "scalar": np.array(7, np.uint8),
    "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
}


def write(path: Path, tensors: dict[str, Tensor]) -> bytes:
    specs = {name: TensorSpec.of(tensor) for name, tensor in tensors.items()}
    write_safetensors(path, specs, tensors.items())
    return path.read_bytes()


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Make writes beyond `size` bytes fail as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_the_library_reads_what_was_written(tmp_path: Path) -> None:
    write(tmp_path / "x.safetensors", TENSORS)
    loaded = load_file(tmp_path / "x.safetensors")
    assert loaded.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert loaded[name].dtype == tensor.dtype
        np.testing.assert_array_equal(loaded[name], tensor)


def test_golden_bytes(tmp_path: Path) -> None:
    tensors: dict[str, Tensor] = {"b": np.array([1], ml_dtypes.bfloat16), "a": np.array([2], np.int32)}
    header = (
        b'{"__metadata__":{"format":"pt"},'
        b'"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]},'
        b'"b":{"dtype":"BF16","shape":[1],"data_offsets":[4,6]}}     '
    )
    expected = len(header).to_bytes(8, "little") + header + b"\x02\0\0\0" + b"\x80\x3f"
    assert write(tmp_path / "x", tensors) == expected


def test_order_of_the_data_does_not_change_the_bytes(tmp_path: Path) -> None:
    specs = {name: TensorSpec.of(tensor) for name, tensor in TENSORS.items()}
    write_safetensors(tmp_path / "backwards", specs, reversed(TENSORS.items()))
    assert (tmp_path / "backwards").read_bytes() == write(tmp_path / "forwards", TENSORS)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), st.integers(0, 9)), min_size=1, max_size=8))
def test_every_tensor_is_aligned_to_its_elements(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[tuple[str, int]]
) -> None:
    path = tmp_path_factory.mktemp("aligned") / "x"
    write(path, {f"t{i}": np.zeros(size, DTYPES[dtype]) for i, (dtype, size) in enumerate(kinds)})
    assert all(entry.offset % entry.dtype.itemsize == 0 for entry in read_header(path).values())


def test_one_tensor_is_in_memory_at_a_time(tmp_path: Path) -> None:
    size = 1 << 20
    specs = {f"t{i}": TensorSpec(np.dtype(np.uint8), (size,)) for i in range(16)}
    tracemalloc.start()
    try:
        write_safetensors(tmp_path / "x", specs, ((name, np.zeros(size, np.uint8)) for name in specs))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * size


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([], "tensor a was never written"),
        ([("a", np.zeros(2, np.int32))] * 2, "tensor a while writing"),
        ([("b", np.zeros(2, np.int32))], "tensor b while writing"),
        ([("a", np.zeros(3, np.int32))], r"found int32 \[3\]; expected int32 \[2\]"),
        ([("a", np.zeros(2, np.float32))], r"found float32 \[2\]; expected int32 \[2\]"),
    ],
)
def test_other_tensors_than_announced_leave_no_file(
    tmp_path: Path, tensors: list[tuple[str, Tensor]], message: str
) -> None:
    with pytest.raises(InternalError, match=message):
        write_safetensors(tmp_path / "x", {"a": TensorSpec(np.dtype(np.int32), (2,))}, tensors)
    assert list(tmp_path.iterdir()) == []


def test_full_disk_is_a_storage_error_and_leaves_no_file(tmp_path: Path) -> None:
    with file_size_limit(1 << 16), pytest.raises(StorageError, match="can't write"):
        write(tmp_path / "x", {"a": np.zeros(1 << 20, np.uint8)})
    assert list(tmp_path.iterdir()) == []
