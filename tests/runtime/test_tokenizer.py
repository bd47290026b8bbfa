"""The tokenizer agrees with transformers and reads a model's special tokens from wherever they stand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from gristmill.runtime.errors import ModelError, RequestError, UnsupportedError
from gristmill.runtime.sources.base import SIDE_FILES
from gristmill.runtime.tokenizer import Tokenizer, load_tokenizer

TEXTS = [
    "Hello there,  friend!\n",
    "naïve 天气 🙂🏽 <|im_end|> x",
    "",
    " leading",
    "<|im_start|>user\nhi<|im_end|>\n",
]


@pytest.fixture(scope="module")
def side_files(tiny_llama: Path) -> dict[str, bytes]:
    return {name: (tiny_llama / name).read_bytes() for name in SIDE_FILES if (tiny_llama / name).exists()}


def with_json(side_files: Mapping[str, bytes], name: str, **changes: Any) -> dict[str, bytes]:
    value = json.loads(side_files.get(name, b"{}")) | changes
    return {**side_files, name: json.dumps(value).encode()}


@pytest.mark.parametrize("special", [True, False])
def test_encodes_as_transformers_does(tiny_llama: Path, special: bool) -> None:
    reference = AutoTokenizer.from_pretrained(tiny_llama)
    expected = [reference.encode(text, add_special_tokens=special) for text in TEXTS]
    assert load_tokenizer(tiny_llama).encode_batch(TEXTS, add_special_tokens=special) == expected


@pytest.mark.parametrize("skip", [True, False])
def test_decodes_as_transformers_does(tiny_llama: Path, skip: bool) -> None:
    reference = AutoTokenizer.from_pretrained(tiny_llama)
    ids = [token_id for text in TEXTS for token_id in reference.encode(text)]
    expected = reference.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
    assert load_tokenizer(tiny_llama).decode(ids, skip_special_tokens=skip) == expected


def test_renders_chats_as_transformers_does(tiny_llama: Path) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    reference = AutoTokenizer.from_pretrained(tiny_llama)
    expected = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert load_tokenizer(tiny_llama).apply_chat_template(messages, add_generation_prompt=True) == expected


def test_offsets_cut_the_text_where_the_tokens_do(tiny_llama: Path) -> None:
    tokenizer = load_tokenizer(tiny_llama)
    ids, offsets = tokenizer.encode_with_offsets("one two, three", add_special_tokens=False)
    pieces = ["one two, three"[start:end] for start, end in offsets]
    assert pieces == [tokenizer.decode([token_id], skip_special_tokens=False) for token_id in ids]


def test_end_tokens_are_the_union_of_all_files_main_one_first(side_files: dict[str, bytes]) -> None:
    files = with_json(side_files, "generation_config.json", eos_token_id=[2, 0])
    files = with_json(
        files,
        "tokenizer_config.json",
        eos_token="<|im_start|>",
        extra_special_tokens={"eot_token": "<repo_name>"},
    )
    tokenizer = Tokenizer.from_files(files, {"eos_token_id": 5})
    assert tokenizer.eos_token_ids == (2, 0, 5, 1, tokenizer.token_id("<repo_name>"))


def test_special_tokens_may_be_objects(side_files: dict[str, bytes]) -> None:
    files = with_json(
        side_files, "tokenizer_config.json", bos_token={"content": "<|endoftext|>", "lstrip": False}
    )
    assert Tokenizer.from_files(files, {}).bos_token == "<|endoftext|>"


def test_special_tokens_map_is_read_where_the_config_is_silent(side_files: dict[str, bytes]) -> None:
    files = with_json(side_files, "special_tokens_map.json", pad_token="<|im_end|>")
    assert Tokenizer.from_files(files, {}).special_tokens["pad_token"] == "<|im_end|>"


def test_tokens_that_only_the_config_lists_are_added_at_their_id(side_files: dict[str, bytes]) -> None:
    entry = {"content": "<|tool|>", "special": True}
    files = with_json(side_files, "tokenizer_config.json", added_tokens_decoder={"49152": entry})
    tokenizer = Tokenizer.from_files(files, {})
    assert tokenizer.encode("a<|tool|>", add_special_tokens=False)[-1] == 49152
    assert 49152 in tokenizer.special_ids


def test_a_token_with_two_ids_is_refused(side_files: dict[str, bytes]) -> None:
    entry = {"content": "<|im_end|>", "special": True}
    files = with_json(side_files, "tokenizer_config.json", added_tokens_decoder={"7": entry})
    with pytest.raises(ModelError, match="disagree on the id"):
        Tokenizer.from_files(files, {})


def test_truncation_in_the_file_is_ignored(side_files: dict[str, bytes]) -> None:
    cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    tokenizer = Tokenizer.from_files(with_json(side_files, "tokenizer.json", truncation=cut), {})
    assert len(tokenizer.encode("one two three four five six", add_special_tokens=False)) == 6


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no tokenizer in"):
        load_tokenizer(tmp_path)


def test_a_sentencepiece_model_alone_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\x00")
    with pytest.raises(ModelError, match=r"no tokenizer.json; found tokenizer.model; .*save_pretrained"):
        load_tokenizer(tmp_path)


def test_a_damaged_tokenizer_is_refused(side_files: dict[str, bytes]) -> None:
    damaged = {**side_files, "tokenizer.json": side_files["tokenizer.json"][:1000]}
    with pytest.raises(ModelError, match="can't be read"):
        Tokenizer.from_files(damaged, {})


def test_an_unknown_decoder_is_refused_by_name(side_files: dict[str, bytes]) -> None:
    files = with_json(
        side_files,
        "tokenizer.json",
        decoder={"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True},
    )
    with pytest.raises(UnsupportedError, match="found CTC"):
        Tokenizer.from_files(files, {})


def test_a_lone_surrogate_is_the_requests_fault(tiny_llama: Path) -> None:
    with pytest.raises(RequestError, match="lone surrogate at character 1"):
        load_tokenizer(tiny_llama).encode("a\ud800b", add_special_tokens=False)


def test_a_folder_keeps_its_additional_templates(tiny_llama: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_llama, tmp_path, dirs_exist_ok=True)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools: {{ tools | length }}")
    tools = [{"type": "function", "function": {"name": "f"}}]
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tools) == "tools: 1"
