"""The header reader against the gguf package, and against files that are not whole."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.runtime.errors import GristmillError, ModelError
from gristmill.runtime.sources.gguf_container import read_gguf
from gristmill.runtime.sources.gguf_file import GgufFile
from gristmill.runtime.sources.gguf_names import gguf_parts, split_name


@pytest.fixture(scope="module")
def small_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a value of every type and two tensors."""
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    scalars = {
        "uint8": 255,
        "int8": -128,
        "uint16": 65535,
        "int16": -32768,
        "uint32": 1 << 31,
        "int32": -5,
        "uint64": 1 << 63,
        "int64": -(1 << 62),
        "float32": 0.5,
        "float64": 1e-300,
        "bool": True,
        "string": "né\0x",
    }
    for kind, value in scalars.items():
        getattr(writer, f"add_{kind}")(f"test.{kind}", value)
    for key, values in {
        "strings": ["", "a", "▁x"],
        "ints": [1, -2],
        "floats": [0.25, -1.0],
        "flags": [True, False],
    }.items():
        writer.add_array(f"test.{key}", values)
    writer.add_tensor("a.weight", np.arange(64, dtype=np.float32).reshape(2, 32))
    writer.add_tensor("b.weight", np.ones(7, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_header_is_read_as_the_gguf_package_reads_it(small_gguf: Path) -> None:
    ours, theirs = read_gguf([small_gguf]), gguf.GGUFReader(small_gguf)
    expected = {key: value.contents() for key, value in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == expected
    for tensor in theirs.tensors:
        found = ours.tensors[tensor.name]
        assert (found.type, found.offset, found.nbytes) == (
            tensor.tensor_type,
            tensor.data_offset,
            tensor.n_bytes,
        )
        assert found.shape == tuple(tensor.shape[::-1].tolist())


def test_every_cut_of_a_file_is_refused(small_gguf: Path, tmp_path: Path) -> None:
    whole = small_gguf.read_bytes()
    end = max(t.offset + t.nbytes for t in read_gguf([small_gguf]).tensors.values())
    cut = tmp_path / "cut.gguf"
    for length in [*range(0, end, 5), end - 1]:
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"cut short|not a GGUF"):
            read_gguf([cut])


@settings(max_examples=150)
@given(position=st.integers(0, 5500), value=st.binary(min_size=1, max_size=9))
def test_a_damaged_header_is_read_or_refused_and_nothing_else(
    tiny_file: Path, tmp_path_factory: pytest.TempPathFactory, position: int, value: bytes
) -> None:
    damaged = bytearray(tiny_file.read_bytes())
    damaged[position : position + len(value)] = value
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(damaged)
    with contextlib.suppress(GristmillError):
        GgufFile([path])


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"PK\x03\x04" + bytes(60), "not a GGUF file"),
        (b"tjgg" + bytes(60), "must be converted again"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(60), "version.*found 1; expected 2 or 3; convert"),
        (b"GGUF" + struct.pack("<I", 4) + bytes(60), "version.*found 4; expected 2 or 3"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(60), "big-endian"),
        (b"", "not a GGUF file; found 0 bytes"),
    ],
)
def test_other_formats_and_versions_are_named(tmp_path: Path, head: bytes, message: str) -> None:
    (tmp_path / "model.gguf").write_bytes(head)
    with pytest.raises(ModelError, match=message):
        read_gguf([tmp_path / "model.gguf"])


def test_split_model_is_the_model(gguf_recipe: Any, tmp_path: Path) -> None:
    whole = GgufFile([gguf_recipe().write(tmp_path / "whole.gguf")])
    recipe = gguf_recipe()
    recipe.parts = 3
    parts = gguf_parts(recipe.write(tmp_path / "split.gguf"))
    split = GgufFile(parts)
    assert len(parts) == 3
    assert split.config == whole.config
    assert all((split.load(name) == whole.load(name)).all() for name in whole.tensor_shapes())


def test_parts_that_do_not_belong_together_are_refused(gguf_recipe: Any, tmp_path: Path) -> None:
    recipe = gguf_recipe()
    recipe.parts = 3
    parts = gguf_parts(recipe.write(tmp_path / "split.gguf"))
    with pytest.raises(ModelError, match="is one of 3 parts; found 1 of them"):
        read_gguf(parts[:1])
    with pytest.raises(ModelError, match=r"is not part 2 of 3; found split\.no 2"):
        read_gguf([parts[0], parts[2], parts[1]])


def test_missing_and_wrong_parts_are_named(gguf_recipe: Any, tmp_path: Path) -> None:
    recipe = gguf_recipe()
    recipe.parts = 3
    parts = gguf_parts(recipe.write(tmp_path / "split.gguf"))
    with pytest.raises(
        ModelError, match=r"is part 2 of a split model; give the first part, .*00001-of-00003"
    ):
        gguf_parts(parts[1])
    parts[2].unlink()
    with pytest.raises(ModelError, match=r"found split-00003-of-00003\.gguf; expected 3 parts"):
        gguf_parts(parts[0])


def test_split_names() -> None:
    assert split_name("m-q4-00002-of-00010.gguf") == ("m-q4", 2, 10)
    assert split_name("m-00000-of-00010.gguf") is None
    assert split_name("m-00011-of-00010.gguf") is None
    assert split_name("m.gguf") is None
