"""A checkpoint that differs in any byte from what was meant is caught, with the tensor's name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gristmill.runtime.errors import IntegrityError
from gristmill.runtime.formats.select import FormatName
from gristmill.runtime.formats.verify import verify_checkpoint
from gristmill.runtime.formats.write import write_checkpoint
from gristmill.runtime.safetensors_files import SafetensorsFolder
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme
from gristmill.runtime.sources.base import ModelSource, Tensor

Quantize = Callable[..., dict[str, QuantizedTensor]]
UP = "model.layers.1.mlp.up_proj"
NORM = "model.norm.weight"


def flip_a_byte(folder: Path, name: str) -> None:
    """Damage the first byte of a tensor on disk."""
    entry = SafetensorsFolder(folder).entry(name)
    with entry.file.open("r+b") as file:
        file.seek(entry.offset)
        byte = file.read(1)[0]
        file.seek(entry.offset)
        file.write(bytes([byte ^ 1]))


@pytest.fixture
def quantized(tiny_source: ModelSource, quantize_model: Quantize) -> dict[str, QuantizedTensor]:
    return quantize_model(tiny_source, lambda name: QuantScheme(4, 32, symmetric=False))


@pytest.fixture
def dense(tiny_source: ModelSource) -> dict[str, Tensor]:
    return {NORM: tiny_source.load(NORM) * 2}


@pytest.mark.parametrize("format", ["compressed-tensors", "awq"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_what_was_written_is_what_is_read(
    tmp_path: Path,
    tiny_source: ModelSource,
    quantize_model: Quantize,
    dense: dict[str, Tensor],
    format: FormatName,
    symmetric: bool,
) -> None:
    quantized = quantize_model(tiny_source, lambda name: QuantScheme(4, 32, symmetric))
    write_checkpoint(tmp_path / "out", tiny_source, quantized, dense, format)
    verify_checkpoint(tmp_path / "out", quantized, dense)


@pytest.mark.parametrize(
    ("format", "piece"),
    [
        ("compressed-tensors", "weight_packed"),
        ("compressed-tensors", "weight_scale"),
        ("compressed-tensors", "weight_zero_point"),
        ("compressed-tensors", "weight_shape"),
        ("awq", "qweight"),
        ("awq", "qzeros"),
        ("awq", "scales"),
    ],
)
def test_damaged_piece_is_found_by_name(
    tmp_path: Path,
    tiny_source: ModelSource,
    quantized: dict[str, QuantizedTensor],
    format: FormatName,
    piece: str,
) -> None:
    write_checkpoint(tmp_path / "out", tiny_source, quantized, {}, format)
    flip_a_byte(tmp_path / "out", f"{UP}.{piece}")
    with pytest.raises(IntegrityError, match=UP):
        verify_checkpoint(tmp_path / "out", quantized, {})


def test_damaged_dense_tensor_is_found_by_name(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor], dense: dict[str, Tensor]
) -> None:
    write_checkpoint(tmp_path / "out", tiny_source, quantized, dense, "awq")
    flip_a_byte(tmp_path / "out", NORM)
    with pytest.raises(IntegrityError, match=f"tensor {NORM} .* other values"):
        verify_checkpoint(tmp_path / "out", quantized, dense)


def test_another_type_of_a_dense_tensor_is_found(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor], dense: dict[str, Tensor]
) -> None:
    write_checkpoint(tmp_path / "out", tiny_source, quantized, dense, "awq")
    with pytest.raises(IntegrityError, match=f"tensor {NORM} .*expected float32"):
        verify_checkpoint(tmp_path / "out", quantized, {NORM: dense[NORM].astype(np.float32)})


def test_layer_that_should_be_packed_is_found(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor]
) -> None:
    write_checkpoint(
        tmp_path / "out", tiny_source, {name: quantized[name] for name in quantized if name != UP}, {}, "awq"
    )
    with pytest.raises(IntegrityError, match=f"{UP}; found plain"):
        verify_checkpoint(tmp_path / "out", quantized, {})


def test_another_group_size_is_found(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor]
) -> None:
    write_checkpoint(tmp_path / "out", tiny_source, quantized, {}, "awq")
    tensor = quantized[UP]
    assert tensor.zero_points is not None
    finer = replace(
        tensor,
        scheme=QuantScheme(4, 16, symmetric=False),
        scales=tensor.scales.repeat(2, axis=1),
        zero_points=tensor.zero_points.repeat(2, axis=1),
    )
    with pytest.raises(IntegrityError, match=f"scheme of {UP}"):
        verify_checkpoint(tmp_path / "out", {**quantized, UP: finer}, {})


def test_truncated_file_is_found(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor]
) -> None:
    write_checkpoint(tmp_path / "out", tiny_source, quantized, {}, "awq")
    file = tmp_path / "out" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(IntegrityError, match="is truncated"):
        verify_checkpoint(tmp_path / "out", quantized, {})
