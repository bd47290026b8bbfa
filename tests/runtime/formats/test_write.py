"""A written checkpoint is a whole, standard, reproducible folder."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.runtime.errors import (
    ArtifactError,
    InternalError,
    ModelError,
    StorageError,
    UnsupportedError,
)
from gristmill.runtime.formats.select import FormatName
from gristmill.runtime.formats.write import write_checkpoint
from gristmill.runtime.safetensors_files import SafetensorsFolder
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme
from gristmill.runtime.sources.base import ModelSource, Tensor

Quantize = Callable[..., dict[str, QuantizedTensor]]
SCHEME = QuantScheme(4, 32, symmetric=False)


class Lazy(Mapping[str, QuantizedTensor]):
    """Counts how often each tensor is asked for."""

    def __init__(self, tensors: Mapping[str, QuantizedTensor]) -> None:
        self.tensors = tensors
        self.loads: dict[str, int] = dict.fromkeys(tensors, 0)

    def __getitem__(self, name: str) -> QuantizedTensor:
        self.loads[name] += 1
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


class Changed:
    """A source with other configuration or tensors."""

    def __init__(
        self,
        source: ModelSource,
        config: dict[str, Any] | None = None,
        tensors: dict[str, Tensor] | None = None,
    ) -> None:
        self.source = source
        self.tensors = tensors or {}
        self.config: Mapping[str, Any] = {**source.config, **(config or {})}
        self.name = "changed"
        self.revision: str | None = None

    def tensor_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {
            **self.source.tensor_shapes(),
            **{name: tensor.shape for name, tensor in self.tensors.items()},
        }

    def load(self, name: str) -> Tensor:
        return self.tensors[name] if name in self.tensors else self.source.load(name)

    def side_files(self) -> Mapping[str, bytes]:
        return self.source.side_files()

    def digest(self) -> str:
        return self.source.digest()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def quantized(tiny_source: ModelSource, quantize_model: Quantize) -> dict[str, QuantizedTensor]:
    return quantize_model(tiny_source, lambda name: SCHEME)


@pytest.mark.parametrize("format", ["compressed-tensors", "awq"])
def test_the_same_input_gives_the_same_bytes(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor], format: FormatName
) -> None:
    for name, tensors in (("a", quantized), ("b", dict(reversed(quantized.items())))):
        write_checkpoint(tmp_path / name, tiny_source, tensors, {}, format)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_side_files_are_copied_byte_for_byte(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor]
) -> None:
    write_checkpoint(tmp_path / "out", tiny_source, quantized, {}, "compressed-tensors")
    side_files = tiny_source.side_files()
    assert {"tokenizer.json", "generation_config.json", "chat_template.jinja"} <= side_files.keys()
    written = contents(tmp_path / "out")
    assert side_files.items() <= written.items()
    assert written.keys() == side_files.keys() | {"config.json", "model.safetensors"}


def test_configuration_is_the_source_and_the_quantization(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor]
) -> None:
    write_checkpoint(tmp_path / "out", tiny_source, quantized, {}, "compressed-tensors")
    config = json.loads((tmp_path / "out" / "config.json").read_bytes())
    block = config.pop("quantization_config")
    assert config == tiny_source.config
    assert (block["quant_method"], block["ignore"]) == ("compressed-tensors", ["lm_head"])


def test_unquantized_tensors_are_unchanged_and_the_others_packed(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor]
) -> None:
    write_checkpoint(tmp_path / "out", tiny_source, quantized, {}, "compressed-tensors")
    files = SafetensorsFolder(tmp_path / "out")
    plain = [name for name in tiny_source.tensor_shapes() if name.removesuffix(".weight") not in quantized]
    for name in plain:
        assert files.dtype(name) == tiny_source.load(name).dtype
        assert files.load(name).tobytes() == tiny_source.load(name).tobytes()
    assert len(files.names()) == len(plain) + 4 * len(quantized)


def test_tied_head_is_not_written_even_if_the_source_stores_it(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor]
) -> None:
    twice = Changed(tiny_source, tensors={"lm_head.weight": tiny_source.load("model.embed_tokens.weight")})
    write_checkpoint(tmp_path / "out", twice, quantized, {}, "compressed-tensors")
    assert "lm_head.weight" not in SafetensorsFolder(tmp_path / "out")


def test_head_of_its_own_is_written_and_ignored(
    tmp_path: Path, tiny_untied_source: ModelSource, quantize_model: Quantize
) -> None:
    quantized = quantize_model(tiny_untied_source, lambda name: SCHEME)
    write_checkpoint(tmp_path / "out", tiny_untied_source, quantized, {}, "compressed-tensors")
    assert "lm_head.weight" in SafetensorsFolder(tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_bytes())
    assert config["quantization_config"]["ignore"] == ["lm_head"]


def test_tensors_beyond_the_plan_are_kept(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor]
) -> None:
    extra: dict[str, Tensor] = {"model.extra": np.arange(3, dtype=np.float32)}
    write_checkpoint(
        tmp_path / "out", Changed(tiny_source, tensors=extra), quantized, {}, "compressed-tensors"
    )
    assert SafetensorsFolder(tmp_path / "out").load("model.extra").tolist() == [0, 1, 2]


def test_replaced_tensors_are_written(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor]
) -> None:
    doubled = tiny_source.load("model.norm.weight") * 2
    write_checkpoint(tmp_path / "out", tiny_source, quantized, {"model.norm.weight": doubled}, "awq")
    assert SafetensorsFolder(tmp_path / "out").load("model.norm.weight").tobytes() == doubled.tobytes()


def test_nothing_quantized_is_a_plain_model(tmp_path: Path, tiny_source: ModelSource) -> None:
    write_checkpoint(tmp_path / "out", tiny_source, {}, {}, "compressed-tensors")
    assert json.loads((tmp_path / "out" / "config.json").read_bytes()) == tiny_source.config
    assert SafetensorsFolder(tmp_path / "out").names() == tuple(sorted(tiny_source.tensor_shapes()))


def test_shards_hold_the_same_tensors_as_one_file(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor]
) -> None:
    write_checkpoint(tmp_path / "one", tiny_source, quantized, {}, "compressed-tensors")
    write_checkpoint(tmp_path / "many", tiny_source, quantized, {}, "compressed-tensors", shard_bytes=20_000)
    one, many = SafetensorsFolder(tmp_path / "one"), SafetensorsFolder(tmp_path / "many")
    assert one.names() == many.names()
    assert all(one.load(name).tobytes() == many.load(name).tobytes() for name in one.names())
    assert len(list((tmp_path / "many").glob("model-*-of-*.safetensors"))) > 2


def test_index_and_shards_are_as_transformers_names_them(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor]
) -> None:
    write_checkpoint(tmp_path / "out", tiny_source, quantized, {}, "compressed-tensors", shard_bytes=40_000)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_bytes())
    shards = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert shards == [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    assert sorted(set(index["weight_map"].values())) == shards
    files = SafetensorsFolder(tmp_path / "out")
    assert index["metadata"]["total_size"] == sum(files.entry(name).nbytes for name in files.names())


def test_pieces_of_a_weight_share_a_shard(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor]
) -> None:
    write_checkpoint(tmp_path / "out", tiny_source, quantized, {}, "compressed-tensors", shard_bytes=1)
    files = SafetensorsFolder(tmp_path / "out")
    for name in quantized:
        pieces = [piece for piece in files.names() if piece.startswith(f"{name}.")]
        assert len({files.entry(piece).file for piece in pieces}) == 1


def test_each_quantized_tensor_is_asked_for_twice_at_most(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor]
) -> None:
    lazy = Lazy(quantized)
    write_checkpoint(tmp_path / "out", tiny_source, lazy, {}, "compressed-tensors")
    assert set(lazy.loads.values()) == {2}


def test_folder_that_is_not_empty_is_refused_and_left_alone(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor]
) -> None:
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(ArtifactError, match="is not empty"):
        write_checkpoint(tmp_path, tiny_source, quantized, {}, "compressed-tensors")
    assert contents(tmp_path) == {"mine": b"keep"}


def test_quantized_source_is_refused(tmp_path: Path, tiny_source: ModelSource) -> None:
    source = Changed(tiny_source, config={"quantization_config": {"quant_method": "awq"}})
    with pytest.raises(UnsupportedError, match="changed is quantized already"):
        write_checkpoint(tmp_path / "out", source, {}, {}, "awq")


def test_source_without_a_planned_tensor_is_refused(tmp_path: Path, tiny_source: ModelSource) -> None:
    deeper = Changed(tiny_source, config={"num_hidden_layers": 4})
    with pytest.raises(ModelError, match=r"tensor model\.layers\.3\.\S+ is missing in changed"):
        write_checkpoint(tmp_path / "out", deeper, {}, {}, "awq")


@pytest.mark.parametrize("name", ["lm_head", "model.embed_tokens", "model.layers.9.mlp.up_proj"])
def test_quantizing_what_is_no_linear_is_a_fault_of_ours(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor], name: str
) -> None:
    tensors = {name: next(iter(quantized.values()))}
    with pytest.raises(InternalError, match=f"{name} is no linear"):
        write_checkpoint(tmp_path / "out", tiny_source, tensors, {}, "awq")


def test_replacing_an_unknown_tensor_is_a_fault_of_ours(tmp_path: Path, tiny_source: ModelSource) -> None:
    with pytest.raises(InternalError, match=r"replaced tensor model\.norm is no tensor"):
        write_checkpoint(tmp_path / "out", tiny_source, {}, {"model.norm": np.zeros(1)}, "awq")


def test_replacing_a_quantized_tensor_is_a_fault_of_ours(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor]
) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    with pytest.raises(InternalError, match="both quantized and replaced"):
        write_checkpoint(tmp_path / "out", tiny_source, quantized, {name: tiny_source.load(name)}, "awq")


def test_scales_that_the_model_type_would_change_are_refused(
    tmp_path: Path, tiny_source: ModelSource, quantize_model: Quantize
) -> None:
    scheme = QuantScheme(4, 32, symmetric=False, scale_dtype="float16")
    quantized = quantize_model(tiny_source, lambda name: scheme)
    with pytest.raises(
        UnsupportedError, match=r"can't be stored exactly as bfloat16; .* scale_dtype bfloat16"
    ):
        write_checkpoint(tmp_path / "out", tiny_source, quantized, {}, "compressed-tensors")
    assert not (tmp_path / "out" / "config.json").exists()


def test_full_disk_leaves_a_folder_without_configuration(
    tmp_path: Path, tiny_source: ModelSource, quantized: dict[str, QuantizedTensor]
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(StorageError, match="can't write"):
            write_checkpoint(tmp_path / "out", tiny_source, quantized, {}, "compressed-tensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert contents(tmp_path / "out") == {}
