"""The scales of an FP8 cache: written under both names, read back equal, and never silently ignored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compressed_tensors.quantization import QuantizationConfig
from transformers import AutoModelForCausalLM

from gristmill.runtime.checkpoint import open_checkpoint
from gristmill.runtime.errors import GristmillError, IntegrityError, ModelError, UnsupportedError
from gristmill.runtime.formats.verify import verify_checkpoint
from gristmill.runtime.formats.write import write_checkpoint
from gristmill.runtime.kv_scales import KVScales, LayerKVScales
from gristmill.runtime.safetensors_files import SafetensorsFolder
from gristmill.runtime.safetensors_writer import TensorSpec, write_safetensors
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme
from gristmill.runtime.sources.base import ModelSource, Tensor

Quantize = Callable[..., dict[str, QuantizedTensor]]

TENSOR: KVScales = tuple(LayerKVScales((0.5 + index,), (0.125,)) for index in range(3))
HEAD: KVScales = tuple(LayerKVScales((0.5, 0.75 + index), (0.125, 0.25)) for index in range(3))
SCALES = {"tensor": TENSOR, "head": HEAD}
ATTENTION = "model.layers.1.self_attn"


@pytest.fixture
def quantized(tiny_source: ModelSource, quantize_model: Quantize) -> dict[str, QuantizedTensor]:
    return quantize_model(tiny_source, lambda name: QuantScheme(4, 32, symmetric=False))


def write(
    folder: Path, source: ModelSource, quantized: dict[str, QuantizedTensor], scales: KVScales = TENSOR
) -> Path:
    write_checkpoint(folder, source, quantized, {}, "compressed-tensors", kv_scales=scales)
    return folder


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    """The folder's tensors, changed."""
    files = SafetensorsFolder(folder)
    tensors = {name: np.array(files.load(name)) for name in files.names()}
    change(tensors)
    specs = {name: TensorSpec.of(tensor) for name, tensor in tensors.items()}
    write_safetensors(folder / "model.safetensors", specs, tensors.items())


def edit_scheme(folder: Path, scheme: dict[str, Any] | None) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["kv_cache_scheme"] = scheme
    path.write_text(json.dumps(config))


@pytest.mark.parametrize("share", SCALES)
@pytest.mark.parametrize("plain", [True, False])
def test_what_was_written_is_read_back(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor], share: str, plain: bool
) -> None:
    weights = {} if plain else quantized
    folder = write(tmp_path / "out", tiny_source, weights, SCALES[share])
    assert open_checkpoint(folder).kv_scales == SCALES[share]
    verify_checkpoint(folder, weights, {}, SCALES[share])


def test_both_names_hold_the_same_scale(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor]
) -> None:
    files = SafetensorsFolder(write(tmp_path / "out", tiny_source, quantized))
    on_module, on_projection = files.load(f"{ATTENTION}.k_scale"), files.load(f"{ATTENTION}.k_proj.k_scale")
    assert (on_module.shape, on_module.dtype.name) == ((1,), "bfloat16")
    assert (on_projection.shape, on_projection.dtype.name) == ((), "float32")
    assert float(on_module[0]) == float(on_projection) == 1.5


@pytest.mark.parametrize(("share", "strategy"), [("tensor", "tensor"), ("head", "attn_head")])
def test_compressed_tensors_reads_the_scheme(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor], share: str, strategy: str
) -> None:
    folder = write(tmp_path / "out", tiny_source, quantized, SCALES[share])
    block = json.loads((folder / "config.json").read_text())["quantization_config"]
    scheme = QuantizationConfig.model_validate(block).kv_cache_scheme
    assert scheme is not None
    assert (scheme.num_bits, scheme.type, scheme.strategy, scheme.dynamic, scheme.symmetric) == (
        8,
        "float",
        strategy,
        False,
        True,
    )


@pytest.mark.parametrize("share", SCALES)
def test_transformers_loads_the_scales(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor], share: str
) -> None:
    folder = write(tmp_path / "out", tiny_source, quantized, SCALES[share])
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    for index, scales in enumerate(SCALES[share]):
        attention = loaded.model.layers[index].self_attn
        assert torch.equal(attention.k_scale.float().flatten(), torch.tensor(scales.keys))
        assert torch.equal(attention.v_scale.float().flatten(), torch.tensor(scales.values))


def test_one_name_is_enough(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor]
) -> None:
    """Checkpoints of other writers have one of the two."""
    folder = write(tmp_path / "out", tiny_source, quantized)
    rewrite(folder, _drop_one_name)
    assert open_checkpoint(folder).kv_scales == TENSOR


def _drop_one_name(tensors: dict[str, Tensor]) -> None:
    del tensors[f"{ATTENTION}.k_scale"]


def _drop(tensors: dict[str, Tensor]) -> None:
    for name in (f"{ATTENTION}.v_scale", f"{ATTENTION}.v_proj.v_scale"):
        del tensors[name]


def _change_one(tensors: dict[str, Tensor]) -> None:
    tensors[f"{ATTENTION}.k_proj.k_scale"] = np.array(9, np.float32)


def _make_zero(tensors: dict[str, Tensor]) -> None:
    for name in (f"{ATTENTION}.k_scale", f"{ATTENTION}.k_proj.k_scale"):
        tensors[name] = tensors[name] * 0


def _add_a_layer(tensors: dict[str, Tensor]) -> None:
    tensors["model.layers.7.self_attn.k_scale"] = np.ones(1, np.float32)


def _make_two(tensors: dict[str, Tensor]) -> None:
    tensors[f"{ATTENTION}.k_scale"] = np.ones((2, 1, 1), np.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_drop, f"tensor {ATTENTION}.v_scale; found missing, engines would take 1 instead"),
        (_change_one, f"tensors {ATTENTION}.k_scale and {ATTENTION}.k_proj.k_scale; found two scales"),
        (_make_zero, r"kv_scales[1].keys; found [0.0]; expected positive, finite numbers"),
        (_add_a_layer, "tensor model.layers.7.self_attn.k_scale: a scale that engines would ignore"),
        (_make_two, f"tensor {ATTENTION}.k_scale; found 2 scales; expected 1"),
    ],
)
def test_a_wrong_scale_is_refused_by_name(
    tmp_path: Path,
    tiny_source: ModelSource,
    quantized: dict[str, QuantizedTensor],
    change: Callable[[dict[str, Tensor]], None],
    message: str,
) -> None:
    folder = write(tmp_path / "out", tiny_source, quantized)
    rewrite(folder, change)
    with pytest.raises(ModelError) as caught:
        open_checkpoint(folder)
    assert message in caught.value.line()


def test_scales_without_a_scheme_are_refused(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor]
) -> None:
    folder = write(tmp_path / "out", tiny_source, quantized)
    edit_scheme(folder, None)
    with pytest.raises(ModelError, match=r"layers.0.self_attn.k_proj.k_scale: a scale that engines would ig"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    "change", [{"num_bits": 4}, {"type": "int"}, {"dynamic": True}, {"symmetric": False}, {"strategy": "x"}]
)
def test_another_quantized_cache_is_refused_by_key(
    tmp_path: Path,
    tiny_source: ModelSource,
    quantized: dict[str, QuantizedTensor],
    change: dict[str, Any],
) -> None:
    folder = write(tmp_path / "out", tiny_source, quantized)
    (key,) = change
    scheme = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False, "strategy": "tensor"}
    edit_scheme(folder, scheme | change)
    with pytest.raises(UnsupportedError, match=f"kv_cache_scheme.{key}"):
        open_checkpoint(folder)


def test_other_scales_than_those_meant_are_found(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor]
) -> None:
    folder = write(tmp_path / "out", tiny_source, quantized)
    for meant in (HEAD, ()):
        with pytest.raises(IntegrityError, match="keys and values"):
            verify_checkpoint(folder, quantized, {}, meant)


@pytest.mark.parametrize(
    ("scales", "format", "message"),
    [
        (TENSOR, "awq", "scales of an fp8 cache; found format awq"),
        (TENSOR[:2], "compressed-tensors", "kv_scales; found 2 layers; expected 3 layers"),
        ((*TENSOR[:2], LayerKVScales((0.1,), (1.0,))), "compressed-tensors", "expected numbers of bfloat16"),
    ],
)
def test_scales_that_have_no_place_are_not_written(
    tmp_path: Path,
    tiny_source: ModelSource,
    quantized: dict[str, QuantizedTensor],
    scales: KVScales,
    format: Any,
    message: str,
) -> None:
    with pytest.raises(GristmillError) as caught:
        write_checkpoint(tmp_path / "out", tiny_source, quantized, {}, format, kv_scales=scales)
    assert message in caught.value.line()
