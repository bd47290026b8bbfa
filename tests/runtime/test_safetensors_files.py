"""What a folder of safetensors files says is what the safetensors library wrote."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from gristmill.runtime.errors import ModelError
from gristmill.runtime.safetensors_files import DTYPES, SafetensorsFolder


def write_header(path: Path, header: bytes, data: bytes) -> None:
    """A safetensors file with exactly this header and data, right or wrong."""
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


def test_reads_what_the_library_wrote(tmp_path: Path) -> None:
    tensors = {
        "half": torch.randn(3, 5).half(),
        "brain": torch.randn(4, 2).bfloat16(),
        "codes": torch.arange(7, dtype=torch.int32),
        "shape": torch.tensor([4, 2]),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
    }
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    folder = SafetensorsFolder(tmp_path)
    assert folder.names() == tuple(sorted(tensors))
    for name, tensor in tensors.items():
        assert folder.shape(name) == tuple(tensor.shape)
        loaded = folder.load(name)
        assert loaded.dtype == folder.dtype(name)
        np.testing.assert_array_equal(loaded.astype(np.float64), tensor.double().numpy())


def test_bfloat16_is_that_of_ml_dtypes(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    assert SafetensorsFolder(tmp_path).load("w").dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name.startswith("F8")])
def test_8_bit_floats_have_their_values(tmp_path: Path, dtype: str) -> None:
    kind = {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu}[
        dtype
    ]
    values = torch.tensor([0.5, 1, 2, 8]).to(kind)
    save_file({"w": values}, tmp_path / "model.safetensors")
    loaded = SafetensorsFolder(tmp_path).load("w")
    np.testing.assert_array_equal(loaded.astype(np.float32), values.float().numpy())


def test_reads_shards_named_by_the_index(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "first.safetensors")
    save_file({"b": torch.zeros(3)}, tmp_path / "second.safetensors")
    index = {"weight_map": {"a": "first.safetensors", "b": "second.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    folder = SafetensorsFolder(tmp_path)
    assert folder.names() == ("a", "b")
    assert folder.load("b").tolist() == [0, 0, 0]


def test_unaligned_data_is_handed_out_aligned(tmp_path: Path) -> None:
    header = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    assert len(header) % 4 != 0
    write_header(tmp_path / "model.safetensors", header, np.array([1, 2], np.float32).tobytes())
    loaded = SafetensorsFolder(tmp_path).load("w")
    assert loaded.flags.aligned
    assert loaded.tolist() == [1, 2]


def test_arrays_are_read_only(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="read-only"):
        SafetensorsFolder(tmp_path).load("w")[0] = 3


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"tensor lm_head\.weight is missing"):
        SafetensorsFolder(tmp_path).load("lm_head.weight")


def test_file_cut_short_after_opening_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.ones(2000)}, path)
    folder = SafetensorsFolder(tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ModelError, match=r"can't read tensor w from .*model\.safetensors"):
        folder.load("w")
