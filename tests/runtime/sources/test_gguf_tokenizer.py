"""Tokenizers made from metadata, against the tokenizer the metadata was written from."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE

from gristmill.runtime.errors import ModelError, UnsupportedError
from gristmill.runtime.sources.gguf_metadata import GgufMetadata
from gristmill.runtime.sources.gguf_tokenizer import tokenizer_files

_TEXTS = [
    "",
    " ",
    "Hello world, it's 2024 and I'VE 12345 apples!!",
    "  two  spaces\n\n\n and   lines \r\n\tthen\u3000more",
    "def f(x):\n    return x ** 2  # 3.14\n\n1\n 2\n  3",
    "SELECT a, b FROM t WHERE c >= 10 AND d <> 'x';",
    "我想在apple工作1314151天～。日本語とひらがな、한국어",
    "Ünïcödé é vs e\u0301, нещо на Български, ½ ② Ⅷ",
    "🚀🙂‍↔️ 👨‍👩‍👧 ✅",
    "a<|turn|>b <|end|> c<|tool|>  d",
]
_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
    r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PUBLISHED = {  # the pre_tokenizer of a published tokenizer.json: patterns, digits apart, GPT-2's pattern
    "gpt-2": ((), False, True),
    "smollm": ((), True, True),
    "llama-bpe": ((rf"{_LETTERS}|\p{{N}}{{1,3}}|{_REST}",), False, False),
    "qwen2": ((rf"{_LETTERS}|\p{{N}}|{_REST}",), False, False),
    "tekken": ((_TEKKEN,), False, False),
    "deepseek-coder": ((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+"), True, False),
    "deepseek-v3": ((r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", _DEEPSEEK_V3), False, False),
}


def _published(name: str) -> Tokenizer:
    """An empty tokenizer that splits text as the published one does."""
    patterns, digits, gpt2 = _PUBLISHED[name]
    steps: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    if digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=gpt2))
    tokenizer = Tokenizer(BPE(ignore_merges=name in ("llama-bpe", "tekken")))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _metadata(tokenizer: Tokenizer, special: dict[str, int], **more: Any) -> dict[str, Any]:
    """What llama.cpp's converter writes for a byte-level tokenizer."""
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [special.get(token, 1) for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        **more,
    }


def _files(metadata: dict[str, Any]) -> dict[str, bytes]:
    return tokenizer_files(GgufMetadata(metadata, Path("model.gguf")), 128)


def _rebuilt(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(_files(metadata)["tokenizer.json"].decode())


@pytest.mark.parametrize("name", _PUBLISHED)
def test_byte_level_tokenizer_encodes_as_the_published_one(name: str) -> None:
    original = _published(name)
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|end|>", "<|turn|>", "<|tool|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    original.train_from_iterator(_TEXTS * 3, trainer)
    special = {"<|end|>": 3, "<|turn|>": 3, "<|tool|>": 4}
    rebuilt = _rebuilt(
        _metadata(original, special, **{"tokenizer.ggml.pre": name, "tokenizer.ggml.add_bos_token": False})
    )
    assert [rebuilt.encode(text).ids for text in _TEXTS] == [original.encode(text).ids for text in _TEXTS]
    expected = [unicodedata.normalize("NFC", text) if name == "qwen2" else text for text in _TEXTS]
    assert [
        rebuilt.decode(rebuilt.encode(text).ids, skip_special_tokens=False) for text in _TEXTS
    ] == expected


def test_user_defined_tokens_are_found_in_text_but_are_not_special(gguf_recipe: Any) -> None:
    metadata = gguf_recipe().metadata
    metadata["tokenizer.ggml.token_type"][2] = 4
    rebuilt = _rebuilt(metadata)
    ids = rebuilt.encode("a<|turn|>b<|end|>").ids
    assert 2 in ids
    assert rebuilt.decode(ids, skip_special_tokens=True) == "a<|turn|>b"


def _sentencepiece(texts: list[str]) -> Tokenizer:
    """A tokenizer of Llama 2's kind, as `tokenizer.json` has it."""
    tokenizer = Tokenizer(BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=800,
        special_tokens=["<unk>", "<s>", "</s>", *byte_tokens],
        limit_alphabet=60,
        max_token_length=8,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in byte_tokens]
    return Tokenizer.from_str(json.dumps(state))


def _sentencepiece_metadata(tokenizer: Tokenizer, **more: Any) -> dict[str, Any]:
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    ranks = {"".join(merge): -float(rank) for rank, merge in reversed(list(enumerate(model["merges"])))}
    types = {"<unk>": 2, "<s>": 3, "</s>": 3}
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [types.get(t, 6 if t.startswith("<0x") else 1) for t in tokens],
        "tokenizer.ggml.scores": [ranks.get(token, -1e6 if len(token) == 1 else 0.0) for token in tokens],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **more,
    }


def test_sentencepiece_tokenizer_encodes_as_the_original() -> None:
    original = _sentencepiece(_TEXTS[2:6] * 3)
    rebuilt = _rebuilt(_sentencepiece_metadata(original))
    texts = [*_TEXTS[:9], "a</s> b<s>c"]
    plain = [rebuilt.encode(text, add_special_tokens=False).ids for text in texts]
    assert plain == [original.encode(text, add_special_tokens=False).ids for text in texts]
    assert [rebuilt.decode(ids) for ids in plain[:9]] == texts[:9]


def test_sentencepiece_texts_begin_with_bos_unless_the_file_says_no() -> None:
    original = _sentencepiece(_TEXTS[2:4])
    assert _rebuilt(_sentencepiece_metadata(original)).encode("a").ids[0] == 1
    metadata = _sentencepiece_metadata(original) | {"tokenizer.ggml.add_bos_token": False}
    assert _rebuilt(metadata).encode("a").ids[0] != 1


def test_a_space_is_put_before_a_text_only_if_the_file_says_so() -> None:
    original = _sentencepiece(_TEXTS[2:4])
    bare = _rebuilt(_sentencepiece_metadata(original) | {"tokenizer.ggml.add_space_prefix": False})
    prefixed = _rebuilt(_sentencepiece_metadata(original))
    assert bare.encode(" a b").ids == prefixed.encode("a b").ids
    assert bare.decode(bare.encode(" a b").ids) == " a b"


def test_bos_and_eos_surround_a_text_where_the_file_says_so(gguf_recipe: Any) -> None:
    flags = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    rebuilt = _rebuilt(gguf_recipe(metadata=flags).metadata)
    ids = rebuilt.encode("he").ids
    assert (ids[0], ids[-1], len(ids)) == (1, 0, 3)
    assert rebuilt.encode("he", "he").type_ids == [0, 0, 0, 1, 1, 1]
    assert rebuilt.encode("he", add_special_tokens=False).ids == ids[1:-1]


def test_settings_name_special_tokens_and_template(gguf_recipe: Any) -> None:
    files = _files(gguf_recipe(metadata={"tokenizer.chat_template": "{{ messages }}"}).metadata)
    settings = json.loads(files["tokenizer_config.json"])
    special = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "pad_token": "<|end|>"}
    assert settings["chat_template"] == "{{ messages }}"
    assert special.items() <= settings.items()
    assert json.loads(files["special_tokens_map.json"]) == special
    assert files["chat_template.jinja"] == b"{{ messages }}"


def test_named_templates_stay_apart(gguf_recipe: Any) -> None:
    named = {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "tools"}
    files = _files(gguf_recipe(metadata=named).metadata)
    assert json.loads(files["tokenizer_config.json"])["chat_template"] == [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "tools"},
    ]


_REFUSED = {
    "tokenizer.ggml.model": ("t5", "tokenizer.ggml.model of .*; found t5; expected gpt2 or llama"),
    "tokenizer.ggml.pre": ("falcon", "tokenizer.ggml.pre of .*; found falcon; expected default, gpt-2"),
}
_WRONG = {
    "tokenizer.ggml.pre": (None, "has no tokenizer.ggml.pre"),
    "tokenizer.ggml.merges": (["Ġ t", "Q zz"], "tokenizer.ggml.merges of"),
    "tokenizer.ggml.token_type": ([1, 1], "token_type of .*; found 2 entries; expected 261"),
    "tokenizer.ggml.tokens": (["a", "b", "a"], "tokens of .*; found 'a' 2 times"),
    "tokenizer.ggml.bos_token_id": (300, "bos_token_id of .*; found 300; expected below 261"),
}


@pytest.mark.parametrize("key", _REFUSED)
def test_another_kind_of_tokenizer_is_refused_by_name(gguf_recipe: Any, key: str) -> None:
    value, message = _REFUSED[key]
    with pytest.raises(UnsupportedError, match=message):
        _files(gguf_recipe(metadata={key: value}).metadata)


@pytest.mark.parametrize("key", _WRONG)
def test_wrong_tokenizer_metadata_is_named(gguf_recipe: Any, key: str) -> None:
    value, message = _WRONG[key]
    metadata = {name: v for name, v in (gguf_recipe().metadata | {key: value}).items() if v is not None}
    with pytest.raises(ModelError, match=message):
        _files(metadata)


def test_a_tokenizer_that_rewrites_text_is_refused() -> None:
    metadata = _sentencepiece_metadata(_sentencepiece(_TEXTS[2:4]))
    with pytest.raises(UnsupportedError, match="remove_extra_whitespaces"):
        _files(metadata | {"tokenizer.ggml.remove_extra_whitespaces": True})


def test_bos_that_is_wanted_and_not_named_is_refused(gguf_recipe: Any) -> None:
    metadata = gguf_recipe(metadata={"tokenizer.ggml.add_bos_token": True}).metadata
    del metadata["tokenizer.ggml.bos_token_id"]
    with pytest.raises(ModelError, match="adds a bos_token to each text but does not say which"):
        _files(metadata)
