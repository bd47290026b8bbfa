"""Hugging Face folders: whole ones, and each way one can be broken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file as save_torch

from gristmill.runtime.errors import ModelError
from gristmill.runtime.sources.base import SIDE_FILES
from gristmill.runtime.sources.gguf_file import GgufFile
from gristmill.runtime.sources.hf_folder import HfFolder, require_unquantized


@pytest.fixture
def folder(tiny_llama: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may damage."""
    return Path(shutil.copytree(tiny_llama, tmp_path / "model"))


def _shard(folder: Path) -> list[Path]:
    """Split the weights into two shards with an index."""
    tensors = load_torch(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    shards = []
    for number, part in enumerate((names[::2], names[1::2]), 1):
        shard = folder / f"model-0000{number}-of-00002.safetensors"
        save_torch({name: tensors[name] for name in part}, shard)
        weight_map |= dict.fromkeys(part, shard.name)
        shards.append(shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return shards


def test_config_tensors_and_side_files_are_those_of_the_folder(folder: Path) -> None:
    source = HfFolder(folder)
    expected = load_torch(folder / "model.safetensors")
    assert source.config == json.loads((folder / "config.json").read_text())
    assert source.tensor_shapes() == {name: tuple(tensor.shape) for name, tensor in sorted(expected.items())}
    for name, tensor in expected.items():
        assert np.array_equal(source.load(name).view(np.int16), tensor.view(torch.int16).numpy())
    present = {path.name for path in folder.iterdir()} & set(SIDE_FILES)
    assert source.side_files() == {name: (folder / name).read_bytes() for name in present}


def test_shards_are_one_model(folder: Path) -> None:
    whole = HfFolder(folder)
    tensors = {name: np.array(whole.load(name)) for name in whole.tensor_shapes()}
    _shard(folder)
    sharded = HfFolder(folder)
    assert sharded.tensor_shapes() == whole.tensor_shapes()
    assert all(np.array_equal(sharded.load(name), tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_tensors_keep_their_type(folder: Path, dtype: Any) -> None:
    names = HfFolder(folder).tensor_shapes()
    save_file({name: np.ones(shape, dtype) for name, shape in names.items()}, folder / "model.safetensors")
    assert {HfFolder(folder).load(name).dtype for name in names} == {np.dtype(dtype)}


def test_digest_does_not_depend_on_the_place(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "elsewhere"))
    assert HfFolder(copy).digest() == HfFolder(folder).digest()


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "model.safetensors"])
def test_digest_changes_with_every_part(folder: Path, name: str) -> None:
    before = HfFolder(folder).digest()
    data = (folder / name).read_bytes()
    changed = (
        data[:-1] + bytes([data[-1] ^ 1]) if name.endswith("safetensors") else data.replace(b"2", b"3", 1)
    )
    (folder / name).write_bytes(changed)
    assert HfFolder(folder).digest() != before


def _without(*names: str) -> Any:
    def damage(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return damage


def _with(name: str, data: bytes) -> Any:
    return lambda folder: (folder / name).write_bytes(data)


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _old_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")


def _lost_shard(folder: Path) -> None:
    _shard(folder)[1].unlink()


def _cut_shard(folder: Path) -> None:
    shard = _shard(folder)[0]
    shard.write_bytes(shard.read_bytes()[:-8])


_BROKEN = {
    "no folder": (shutil.rmtree, "model folder .* does not exist"),
    "no config": (_without("config.json"), r"is not a model folder; found .*; expected a config\.json"),
    "config not JSON": (_with("config.json", b"{"), r"config\.json is not valid JSON"),
    "config not UTF-8": (_with("config.json", b"\xff"), r"config\.json is not valid JSON"),
    "config with NaN": (_with("config.json", b'{"a": NaN}'), "found NaN, which JSON does not have"),
    "config a list": (_with("config.json", b"[]"), "found list; expected a JSON object"),
    "no weights": (_without("model.safetensors"), "no weights in"),
    "pickled weights": (
        _pickled,
        r"pickle files; found pytorch_model\.bin; .*convert it: AutoModelForCausalLM",
    ),
    "no tokenizer": (_without("tokenizer.json"), r"has no tokenizer\.json; found no tokenizer at all"),
    "old tokenizer": (
        _old_tokenizer,
        r"has no tokenizer\.json; found tokenizer\.model; convert it: AutoTokenizer",
    ),
    "lost shard": (_lost_shard, r"shard model-00002-of-00002\.safetensors .* is missing"),
    "cut shard": (_cut_shard, r"model-00001-of-00002\.safetensors is truncated"),
    "cut file": (_with("model.safetensors", b"\x40\0\0\0\0\0\0\0{"), "is truncated or damaged"),
}


@pytest.mark.parametrize("case", _BROKEN)
def test_broken_folder_is_refused_with_the_part(folder: Path, case: str) -> None:
    damage, message = _BROKEN[case]
    damage(folder)
    with pytest.raises(ModelError, match=message):
        HfFolder(folder)


def test_folder_with_only_a_gguf_says_to_give_the_file(tmp_path: Path, tiny_file: Path) -> None:
    shutil.copy(tiny_file, tmp_path)
    with pytest.raises(ModelError, match=r"found tiny\.gguf; give the path of the GGUF file itself"):
        HfFolder(tmp_path)


def test_float_models_pass_as_unquantized(folder: Path, tiny_file: Path) -> None:
    require_unquantized(HfFolder(folder))
    require_unquantized(GgufFile([tiny_file]))


def test_real_quantization_configurations_are_refused_by_method(folder: Path, data_dir: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    rows = [
        json.loads(line) for line in (data_dir / "field" / "quant_configs.jsonl").read_text().splitlines()
    ]
    for row in rows:
        settings = row["quant_config"]
        (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
        nested = settings.get("quantization", settings)
        method = settings.get("quant_method") or nested.get("quant_algo") or "bitsandbytes"
        with pytest.raises(ModelError, match=f"is already quantized; found {method}"):
            require_unquantized(HfFolder(folder))


@pytest.mark.parametrize(
    ("name", "settings", "method"),
    [
        ("hf_quant_config.json", {"quantization": {"quant_algo": "W4A16_AWQ"}}, "W4A16_AWQ"),
        ("quantize_config.json", {"bits": 4, "group_size": 128, "desc_act": True}, "gptq"),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 128, "version": "GEMM"}, "awq"),
    ],
)
def test_quantization_file_beside_the_config_is_seen(
    folder: Path, name: str, settings: dict[str, Any], method: str
) -> None:
    (folder / name).write_text(json.dumps(settings))
    with pytest.raises(ModelError, match=f"is already quantized; found {method} in {name}"):
        require_unquantized(HfFolder(folder))


def test_nested_and_undeclared_quantization_is_seen(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    nested = {"text_config": {"quantization_config": {"quant_method": "fp8"}}}
    (folder / "config.json").write_text(json.dumps(config | nested))
    with pytest.raises(ModelError, match="found fp8"):
        require_unquantized(HfFolder(folder))
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {"model.layers.0.mlp.up_proj.qweight": np.zeros((2, 2), np.int32)}, folder / "model.safetensors"
    )
    with pytest.raises(
        ModelError, match=r"found packed tensors such as model\.layers\.0\.mlp\.up_proj\.qweight"
    ):
        require_unquantized(HfFolder(folder))
