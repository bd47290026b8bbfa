"""A Hugging Face tokenizer from GGUF metadata: `tokenizer.json` and the files beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE

from gristmill.runtime.errors import ModelError, UnsupportedError
from gristmill.runtime.files import canonical_json
from gristmill.runtime.sources.gguf_metadata import GgufMetadata
from gristmill.runtime.sources.gguf_pretokenizers import SplitScheme, build_pre_tokenizer, split_scheme

__all__ = ["tokenizer_files"]

_MARK = "▁"  # SentencePiece's stand-in for a space
_SPECIAL_NAMES = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
    "seperator": "sep_token",  # GGUF's spelling
    "mask": "mask_token",
}


class _TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """Tokens by id, their types, and which ids have a role."""

    tokens: list[str]
    types: list[int]
    roles: Mapping[str, int]

    def ids(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self.tokens)}

    def role(self, name: str) -> str | None:
        """The text of the token with role `name`, as `bos_token`."""
        return self.tokens[self.roles[name]] if name in self.roles else None


def tokenizer_files(metadata: GgufMetadata, max_length: int) -> dict[str, bytes]:
    """The tokenizer as Hugging Face side files, with the chat template where the file has one.

    Raises ModelError for tokens, types or merges that are missing or
    contradict each other, and UnsupportedError for another kind of tokenizer.
    """
    kind = metadata.text("tokenizer.ggml.model")
    vocabulary = _read_vocabulary(metadata)
    if kind == "gpt2":
        tokenizer, begins_with_bos = _byte_level_bpe(metadata, vocabulary)
    elif kind == "llama":
        tokenizer, begins_with_bos = _sentencepiece_bpe(metadata, vocabulary), True
    else:
        raise UnsupportedError(
            f"tokenizer.ggml.model of {metadata.path}", found=kind, expected="gpt2 or llama"
        )
    adds_bos = metadata.boolean("tokenizer.ggml.add_bos_token", begins_with_bos)
    adds_eos = metadata.boolean("tokenizer.ggml.add_eos_token", False)
    _add_template(tokenizer, metadata, vocabulary, adds_bos, adds_eos)
    _add_special_tokens(tokenizer, vocabulary)
    special = {name: vocabulary.tokens[token] for name, token in sorted(vocabulary.roles.items())}
    settings: dict[str, Any] = {
        "add_bos_token": adds_bos,
        "add_eos_token": adds_eos,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special,
    }
    templates = _chat_templates(metadata)
    if templates:
        named = [{"name": name, "template": text} for name, text in templates.items()]
        settings["chat_template"] = templates["default"] if list(templates) == ["default"] else named
    files = {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": canonical_json(settings),
        "special_tokens_map.json": canonical_json(special),
    }
    if "default" in templates:
        files["chat_template.jinja"] = templates["default"].encode()
    return files


def _read_vocabulary(metadata: GgufMetadata) -> _Vocabulary:
    tokens = metadata.items("tokenizer.ggml.tokens", str)
    if len(set(tokens)) != len(tokens):
        ((repeated, count),) = Counter(tokens).most_common(1)
        raise ModelError(f"tokenizer.ggml.tokens of {metadata.path}", found=f"{repeated!r} {count} times")
    types = metadata.items("tokenizer.ggml.token_type", int, len(tokens))
    roles = {name: metadata.token(key, len(tokens)) for key, name in _SPECIAL_NAMES.items()}
    return _Vocabulary(tokens, types, {name: token for name, token in roles.items() if token is not None})


def _byte_level_bpe(metadata: GgufMetadata, vocabulary: _Vocabulary) -> tuple[Tokenizer, bool]:
    """A tokenizer of GPT-2's kind, and whether its texts begin with bos by default.

    `add_space_prefix` has no effect on this kind, as in llama.cpp.
    """
    scheme: SplitScheme = split_scheme(metadata.text("tokenizer.ggml.pre"), metadata.path)
    # A merge is "left right"; neither half contains a space in GPT-2's byte alphabet.
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.items("tokenizer.ggml.merges", str)]
    tokenizer = Tokenizer(_bpe(metadata, vocabulary, merges, ignore_merges=scheme.whole_words))
    if scheme.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = build_pre_tokenizer(scheme)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, scheme.begins_with_bos


def _sentencepiece_bpe(metadata: GgufMetadata, vocabulary: _Vocabulary) -> Tokenizer:
    """A tokenizer of Llama 2's kind: BPE by score over text whose spaces are marks."""
    for key in ("tokenizer.ggml.remove_extra_whitespaces", "tokenizer.ggml.precompiled_charsmap"):
        if metadata.values.get(key):
            raise UnsupportedError(
                f"{key} of {metadata.path}", expected="a tokenizer that keeps text as it is"
            )
    scores = metadata.items("tokenizer.ggml.scores", float, len(vocabulary.tokens))
    tokenizer = Tokenizer(
        _bpe(
            metadata,
            vocabulary,
            _merges_by_score(vocabulary, scores),
            unk_token=vocabulary.role("unk_token") or vocabulary.tokens[0],
            fuse_unk=True,
            byte_fallback=_TokenType.BYTE in vocabulary.types,
        )
    )
    prefixed = metadata.boolean("tokenizer.ggml.add_space_prefix", True)
    marks = normalizers.Replace(" ", _MARK)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_MARK), marks]) if prefixed else marks
    steps = [decoders.Replace(_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefixed else steps)
    return tokenizer


def _merges_by_score(vocabulary: _Vocabulary, scores: list[float]) -> list[tuple[str, str]]:
    """Merges whose order gives SentencePiece's result: best score of the merged piece first.

    Pieces of the same score stay in the order of their ids, and the ways to
    split one piece are ordered by the ids of its halves, as in the tokenizers
    that Hugging Face converted.
    """
    pieces = {
        token: index
        for index, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if kind in (_TokenType.NORMAL, _TokenType.UNUSED)
    }
    merges: list[tuple[str, str]] = []
    for piece in sorted(pieces, key=lambda piece: -scores[pieces[piece]]):
        halves = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        known = [(left, right) for left, right in halves if left in pieces and right in pieces]
        merges.extend(sorted(known, key=lambda pair: (pieces[pair[0]], pieces[pair[1]])))
    return merges


def _bpe(metadata: GgufMetadata, vocabulary: _Vocabulary, merges: list[Any], **settings: Any) -> BPE:
    try:
        return BPE(vocabulary.ids(), merges, **settings)
    except Exception as error:  # what the library raises for a wrong merge
        raise ModelError(f"tokenizer.ggml.merges of {metadata.path}", found=error) from error


def _add_special_tokens(tokenizer: Tokenizer, vocabulary: _Vocabulary) -> None:
    """Tokens that are found in text before it is split; all but user-defined ones are special."""
    added = [
        AddedToken(token, special=kind != _TokenType.USER_DEFINED, normalized=False)
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
        if kind in (_TokenType.CONTROL, _TokenType.UNKNOWN, _TokenType.USER_DEFINED)
    ]
    tokenizer.add_tokens(added)


def _add_template(
    tokenizer: Tokenizer, metadata: GgufMetadata, vocabulary: _Vocabulary, adds_bos: bool, adds_eos: bool
) -> None:
    """Make every encoded text begin with bos and end with eos where the model wants that."""
    begin = [_required_role(metadata, vocabulary, "bos_token")] if adds_bos else []
    end = [_required_role(metadata, vocabulary, "eos_token")] if adds_eos else []
    if not begin and not end:
        return
    first = [*begin, "$A", *end]
    second = [f"{piece}:1" for piece in (*begin, "$B", *end)]
    used = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys([*begin, *end])]
    tokenizer.post_processor = processors.TemplateProcessing(first, [*first, *second], used)


def _required_role(metadata: GgufMetadata, vocabulary: _Vocabulary, name: str) -> str:
    token = vocabulary.role(name)
    if token is None:
        raise ModelError(f"{metadata.path} adds a {name} to each text but does not say which")
    return token


def _chat_templates(metadata: GgufMetadata) -> dict[str, str]:
    """Chat templates by name, `default` for the one without a name."""
    prefix = "tokenizer.chat_template"
    templates = {"default": metadata.text(prefix)} if prefix in metadata else {}
    for key in metadata.values:
        if key.startswith(f"{prefix}."):
            templates[key.removeprefix(f"{prefix}.")] = metadata.text(key)
    return templates
