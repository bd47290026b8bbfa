"""Safetensors folders that must be refused, each with the file and the fault named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gristmill.runtime.errors import ModelError
from gristmill.runtime.safetensors_files import SafetensorsFolder


def entry(begin: int, end: int, dtype: str = "F32", shape: object = None) -> dict[str, object]:
    return {
        "dtype": dtype,
        "shape": [(end - begin) // 4] if shape is None else shape,
        "data_offsets": [begin, end],
    }


def raw(header: bytes, data: int = 8) -> bytes:
    return len(header).to_bytes(8, "little") + header + bytes(data)


def packed(header: object, data: int = 8) -> bytes:
    return raw(json.dumps(header).encode(), data)


DAMAGED = {
    "empty file": (b"", "truncated or damaged"),
    "length cut short": (b"\x10\0\0", "truncated or damaged"),
    "header cut short": (raw(b'{"w":')[:10], "truncated or damaged"),
    "header longer than the file": ((1 << 40).to_bytes(8, "little") + b"{}", "truncated or damaged"),
    "header is not JSON": (raw(b"not json", 0), "header of safetensors file .* is damaged"),
    "header is not UTF-8": (raw(b'{"\xff\xfe": 1}', 0), "header of safetensors file .* is damaged"),
    "header nests without end": (raw(b"[" * 100_000, 0), "header of safetensors file .* is damaged"),
    "header is a list": (packed([], 0), "expected an object"),
    "a name twice": (
        raw(
            b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
            b'"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}'
        ),
        "w twice",
    ),
    "overlap": (packed({"a": entry(0, 8), "b": entry(4, 8)}), "tensor b .* overlaps"),
    "hole": (packed({"a": entry(0, 4), "b": entry(8, 12)}, 12), "tensor b .* leaves a hole"),
    "data cut short": (packed({"a": entry(0, 8)}, 4), "is truncated; found 4 bytes of data; expected 8"),
    "data left over": (packed({"a": entry(0, 8)}, 9), "has bytes that no tensor owns"),
    "unknown type": (packed({"a": entry(0, 8, "F4")}), "type of tensor a .*found F4"),
    "type is no text": (packed({"a": {**entry(0, 8), "dtype": []}}), "type of tensor a"),
    "size is not that of the shape": (packed({"a": entry(0, 8, shape=[3])}), "expected 12 for F32"),
    "negative size": (packed({"a": entry(0, 8, shape=[-2, -1])}), "shape of tensor a"),
    "size is a truth value": (packed({"a": entry(0, 4, shape=[True])}, 4), "shape of tensor a"),
    "offsets run backwards": (packed({"a": {**entry(0, 8), "data_offsets": [8, 0]}}), "offsets of tensor a"),
    "one offset": (packed({"a": {**entry(0, 8), "data_offsets": [8]}}), "offsets of tensor a"),
    "missing field": (
        packed({"a": {"dtype": "F32", "shape": [2]}}),
        "expected dtype, shape and data_offsets",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_file_is_refused_by_name(tmp_path: Path, case: str) -> None:
    content, message = DAMAGED[case]
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=message) as caught:
        SafetensorsFolder(tmp_path)
    assert "model.safetensors" in str(caught.value)


def write_index(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_missing_shard_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    write_index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    with pytest.raises(ModelError, match=r"shard two\.safetensors of .* is missing"):
        SafetensorsFolder(tmp_path)


def test_truncated_shard_is_refused(tmp_path: Path) -> None:
    shard = tmp_path / "one.safetensors"
    save_file({"a": torch.ones(64)}, shard)
    shard.write_bytes(shard.read_bytes()[:-8])
    write_index(tmp_path, {"a": "one.safetensors"})
    with pytest.raises(ModelError, match=r"one\.safetensors is truncated"):
        SafetensorsFolder(tmp_path)


def test_tensor_that_only_the_index_knows_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    write_index(tmp_path, {"a": "one.safetensors", "b": "one.safetensors"})
    with pytest.raises(ModelError, match=r"tensor b is missing in .*one\.safetensors"):
        SafetensorsFolder(tmp_path)


def test_index_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    write_index(tmp_path, {"a": "../one.safetensors"})
    with pytest.raises(ModelError, match="expected the name of a file in the same folder"):
        SafetensorsFolder(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"{", b'{"weight_map": []}', b'{"weight_map": {}}'])
def test_damaged_index_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"index .*model\.safetensors\.index\.json"):
        SafetensorsFolder(tmp_path)


def test_folder_with_pickled_weights_only_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"found pytorch_model\.bin.*convert the weights to safetensors"):
        SafetensorsFolder(tmp_path)


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere does not exist"):
        SafetensorsFolder(tmp_path / "nowhere")
