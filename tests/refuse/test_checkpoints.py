"""Checkpoint folders that must be refused, each with the file, the tensor or the method named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gristmill.runtime.checkpoint import open_checkpoint
from gristmill.runtime.errors import ModelError, UnsupportedError
from tests.tiny_checkpoints import dense_mlp

UP = "model.layers.0.mlp.up_proj"
GROUPS = {
    "group_0": {"targets": [UP], "weights": {"num_bits": 4, "group_size": 32, "strategy": "group"}},
}
PACKED = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": GROUPS}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}

Tensors = dict[str, np.ndarray[Any, Any]]


def edit_config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_bytes()) | changes))


def edit_tensors(folder: Path, edit: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def pack_up_proj(**changes: np.ndarray[Any, Any]) -> Callable[[Tensors], object]:
    """Replace one weight [128, 64] by valid packed pieces, changed."""
    pieces: Mapping[str, np.ndarray[Any, Any]] = {
        "weight_packed": np.zeros((128, 8), np.int32),
        "weight_scale": np.ones((128, 2), np.float16),
        "weight_shape": np.array([128, 64]),
        **changes,
    }

    def edit(tensors: Tensors) -> None:
        del tensors[f"{UP}.weight"]
        tensors.update({f"{UP}.{name}": piece for name, piece in pieces.items()})

    return edit


@pytest.fixture
def folder(tmp_path: Path, tiny_llama: Path) -> Path:
    """A copy of the tiny model, to be damaged."""
    return shutil.copytree(tiny_llama, tmp_path / "model")


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere does not exist"):
        open_checkpoint(tmp_path / "nowhere")


def test_missing_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json is missing in"):
        open_checkpoint(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b"[" * 100_000])
def test_damaged_config(folder: Path, content: bytes) -> None:
    (folder / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        open_checkpoint(folder)


def test_missing_tensor(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.pop(f"{UP}.weight"))
    with pytest.raises(ModelError, match=rf"tensor {UP}\.weight is missing"):
        open_checkpoint(folder)


def test_shape_that_contradicts_the_configuration(folder: Path) -> None:
    edit_config(folder, intermediate_size=136)
    with pytest.raises(ModelError, match=r"mlp\.\S+ in .*model\.safetensors; found .* expected"):
        open_checkpoint(folder)


def test_integers_without_a_quantization_block(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({f"{UP}.weight": np.zeros((128, 64), np.int8)}))
    with pytest.raises(ModelError, match=rf"{UP}\.weight in .*; found int8 \[128, 64\]"):
        open_checkpoint(folder)


def test_truncated_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"model\.safetensors is truncated"):
        open_checkpoint(folder)


def test_unknown_quantization_method(folder: Path) -> None:
    edit_config(folder, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(UnsupportedError, match="quant_method gptq; expected compressed-tensors or awq"):
        open_checkpoint(folder)


def test_quantization_block_that_is_no_object(folder: Path) -> None:
    edit_config(folder, quantization_config=["awq"])
    with pytest.raises(ModelError, match=r"quantization_config in .* expected an object"):
        open_checkpoint(folder)


def test_quantization_in_a_file_of_its_own(folder: Path) -> None:
    settings = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    (folder / "hf_quant_config.json").write_text(json.dumps(settings))
    with pytest.raises(UnsupportedError, match=r"quant_method modelopt \(FP8\)"):
        open_checkpoint(folder)


def test_configuration_promises_packed_weights_that_are_not_there(folder: Path) -> None:
    edit_config(folder, quantization_config=PACKED)
    with pytest.raises(ModelError, match=rf"tensor {UP}\.weight_scale is missing"):
        open_checkpoint(folder)


def test_awq_weights_that_are_not_there(folder: Path) -> None:
    edit_config(folder, quantization_config=AWQ)
    with pytest.raises(ModelError, match=r"tensor \S+\.qweight is missing"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("piece", "value"),
    [
        ("weight_packed", np.zeros((128, 9), np.int32)),
        ("weight_packed", np.zeros((128, 8), np.float32)),
        ("weight_scale", np.ones((128, 1), np.float16)),
        ("weight_shape", np.array([128])),
    ],
)
def test_packed_piece_of_another_shape(folder: Path, piece: str, value: np.ndarray[Any, Any]) -> None:
    edit_config(folder, quantization_config=PACKED)
    edit_tensors(folder, pack_up_proj(**{piece: value}))
    with pytest.raises(ModelError, match=rf"tensor {UP}\.{piece} in .*model\.safetensors; found"):
        open_checkpoint(folder)


def test_scales_of_an_integer_type(folder: Path) -> None:
    edit_config(folder, quantization_config=PACKED)
    edit_tensors(folder, pack_up_proj(weight_scale=np.ones((128, 2), np.uint8)))
    with pytest.raises(UnsupportedError, match=rf"type of {UP}\.weight_scale; found uint8"):
        open_checkpoint(folder)


def test_group_size_that_does_not_divide(folder: Path) -> None:
    groups = {"g": {"targets": [UP], "weights": {"num_bits": 4, "group_size": 48, "strategy": "group"}}}
    edit_config(folder, quantization_config=PACKED | {"config_groups": groups})
    edit_tensors(folder, pack_up_proj())
    with pytest.raises(ModelError, match=f"{UP}: group size 48 does not divide 64"):
        open_checkpoint(folder)


def test_stored_shape_of_another_weight(folder: Path) -> None:
    edit_config(folder, quantization_config=PACKED)
    edit_tensors(folder, pack_up_proj(weight_shape=np.array([64, 128])))
    checkpoint = open_checkpoint(folder)
    with pytest.raises(ModelError, match=f"tensor {UP}"):
        checkpoint.weight(dense_mlp(checkpoint.plan.layers[0]).up)


def test_valid_pieces_are_not_refused(folder: Path) -> None:
    edit_config(folder, quantization_config=PACKED)
    edit_tensors(folder, pack_up_proj())
    checkpoint = open_checkpoint(folder)
    assert checkpoint.weight(dense_mlp(checkpoint.plan.layers[0]).up).shape == (128, 64)
