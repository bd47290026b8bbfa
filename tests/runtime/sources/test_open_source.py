"""From what a user writes to a source, and what is refused on the way."""

from __future__ import annotations

import shutil
from pathlib import Path

import huggingface_hub.constants
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.runtime.errors import GristmillError, ModelError, OutsideError
from gristmill.runtime.sources.gguf_file import GgufFile
from gristmill.runtime.sources.hf_folder import HfFolder
from gristmill.runtime.sources.open import open_source

_COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def _cache(hub_cache: Path, model: Path) -> Path:
    repository = hub_cache / "models--org--name"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(_COMMIT)
    return Path(shutil.copytree(model, repository / "snapshots" / _COMMIT))


def test_relative_path_starts_at_the_base(tiny_llama: Path) -> None:
    source = open_source(tiny_llama.name, tiny_llama.parent)
    assert isinstance(source, HfFolder)
    assert source.name == tiny_llama.name
    assert source.digest() == open_source(str(tiny_llama), Path("/")).digest()


def test_gguf_is_known_by_its_content_too(tiny_file: Path, tmp_path: Path) -> None:
    shutil.copy(tiny_file, tmp_path / "weights.bin")
    assert isinstance(open_source("weights.bin", tmp_path), GgufFile)


def test_cached_hub_model_needs_no_network(hub_cache: Path, tiny_llama: Path, tmp_path: Path) -> None:
    _cache(hub_cache, tiny_llama)
    for model in ("org/name", f"org/name@{_COMMIT}"):
        source = open_source(model, tmp_path)
        assert isinstance(source, HfFolder)
        assert (source.name, source.revision) == (model, _COMMIT)


def test_local_path_outranks_a_hub_id(hub_cache: Path, tiny_llama: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_llama, tmp_path / "org" / "name")
    source = open_source("org/name", tmp_path)
    assert isinstance(source, HfFolder)
    assert source.revision is None


def test_unreachable_hub_says_what_to_do(hub_cache: Path, tmp_path: Path) -> None:
    with pytest.raises(OutsideError, match=r"can't get org/name .*; check the network"):
        open_source("org/name", tmp_path)


def test_cached_model_in_part_says_which_part(hub_cache: Path, tiny_llama: Path, tmp_path: Path) -> None:
    (_cache(hub_cache, tiny_llama) / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        open_source("org/name", tmp_path)


def test_id_that_can_not_exist_is_refused(hub_cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="neither a local path nor a model of the Hugging Face hub"):
        open_source("org/na..me", tmp_path)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("", "model; found ''; expected a folder, a .gguf file, package:NAME or a Hugging Face id"),
        ("  ", "expected a folder"),
        ("a\0b", "expected a folder"),
        ("nothing", "there is no model nothing; found no folder or file .*nothing; expected a folder"),
        ("nothing/model.gguf", "there is no model nothing/model.gguf"),
        ("./org/name", "there is no model ./org/name"),
        ("https://host/org/name", "there is no model https"),
        ("empty", "is not a model folder; found an empty folder"),
        ("notes.txt", "notes.txt is not a model; expected a folder"),
        ("shard.safetensors", "shard.safetensors is not a model; .*; give the folder it lies in"),
        ("empty.gguf", "empty.gguf is not a GGUF file; found 0 bytes"),
        ("package:", "package name; found ''"),
        ("x" * 5000, "there is no model x"),
        ("~nobody-here/model", "there is no model ~nobody-here"),
    ],
)
def test_odd_strings_are_refused(tmp_path: Path, model: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("notes.txt", "shard.safetensors", "empty.gguf"):
        (tmp_path / name).write_bytes(b"" if name == "empty.gguf" else b"hello")
    with pytest.raises(ModelError, match=message):
        open_source(model, tmp_path)


@settings(max_examples=200)
@given(model=st.one_of(st.text(max_size=30), st.from_regex(r"(package:)?[\w./@:~-]{0,20}", fullmatch=True)))
def test_no_string_gives_a_traceback(model: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tmp_path_factory.getbasetemp() / "nothing-here"
    if not model.startswith(("/", "~")) and ".." not in model and "/" not in model:
        with pytest.raises(GristmillError):
            open_source(model, base)
