"""Text to tokens and back, with the model's own special tokens and chat template; torch-free."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import tokenizers

from gristmill.runtime.chat_form import Message
from gristmill.runtime.chat_template import ChatTemplate, read_templates, select_template
from gristmill.runtime.errors import ModelError, RequestError
from gristmill.runtime.sources.base import SIDE_FILES
from gristmill.runtime.token_bytes import TokenCodec, read_codec

__all__ = ["Tokenizer", "load_tokenizer"]

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_END_TOKENS = ("eos_token", "eot_token", "eom_token")


@dataclass(frozen=True, slots=True, eq=False)
class Tokenizer:
    """A model's tokenizer, safe to share between threads.

    eos_token_ids   every token that ends a generation, the main one first: those of generation_config,
                    config and tokenizer_config together
    special_tokens  `bos_token`, `eos_token`, ... as text, where the model names them
    special_ids     tokens that `skip_special_tokens` leaves out of decoded text
    templates       chat templates by name, `default` for the usual one
    """

    backend: tokenizers.Tokenizer
    codec: TokenCodec
    eos_token_ids: tuple[int, ...]
    special_tokens: Mapping[str, str]
    special_ids: frozenset[int]
    templates: Mapping[str, ChatTemplate]
    _bytes: dict[int, bytes] = field(init=False, repr=False, default_factory=dict)  # of the tokens so far

    @classmethod
    def from_files(cls, side_files: Mapping[str, bytes], config: Mapping[str, Any]) -> Tokenizer:
        """Build from the side files of a model and its `config.json`. Raises ModelError."""
        backend = _read_backend(side_files)
        settings = _read_json(side_files, "tokenizer_config.json")
        special_tokens = _named_tokens(_read_json(side_files, "special_tokens_map.json") | settings)
        _add_missing_tokens(backend, settings.get("added_tokens_decoder") or {})
        _mark_special(backend, special_tokens)
        generation = _read_json(side_files, "generation_config.json")
        added = backend.get_added_tokens_decoder()
        return cls(
            backend=backend,
            codec=read_codec(_decoder(backend)),
            eos_token_ids=_end_tokens(backend, (generation, config), settings, special_tokens),
            special_tokens=special_tokens,
            special_ids=frozenset(token_id for token_id, token in added.items() if token.special),
            templates=read_templates(side_files, settings, special_tokens),
        )

    @property
    def vocab_size(self) -> int:
        """The number of tokens; the model's embedding may have more rows than this."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @property
    def bos_token(self) -> str | None:
        """The token that begins a text, where the model names one."""
        return self.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        """The token that ends a text, where the model names one."""
        return self.special_tokens.get("eos_token")

    def token_id(self, token: str) -> int | None:
        """The id of a vocabulary entry, written as in the vocabulary."""
        return self.backend.token_to_id(token)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token, maybe part of a character; nothing for an id without a token."""
        known = self._bytes.get(token_id)
        if known is None:
            token = self.backend.id_to_token(token_id)
            if token is None:
                return b""
            known = self._bytes[token_id] = self.codec.encode(token)
        return known

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text.

        `add_special_tokens` adds what the model's post-processor adds, BOS mostly.
        A rendered chat has its special tokens already: encode it without.
        """
        return self.encode_batch([text], add_special_tokens=add_special_tokens)[0]

    def encode_prompt(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """`encode` for a model to read: a text that has the start token itself gets no second one."""
        token_ids = self.encode(text, add_special_tokens=add_special_tokens)
        start = None if self.bos_token is None else self.token_id(self.bos_token)
        if add_special_tokens and token_ids[:2] == [start, start]:
            was_added = len(token_ids) > len(self.encode(text, add_special_tokens=False))
            return token_ids[1:] if was_added else token_ids
        return token_ids

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """`encode` for many texts at once, on all cores."""
        for text in texts:
            _check_unicode(text)
        encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def encode_with_offsets(
        self, text: str, *, add_special_tokens: bool
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids, and for each the characters [start, end) of `text` that it covers."""
        _check_unicode(text)
        encoding = self.backend.encode(text, add_special_tokens=add_special_tokens)
        return encoding.ids, encoding.offsets

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool) -> str:
        """The text of tokens. Bytes that are no UTF-8 become U+FFFD; good characters beside them are kept."""
        skipped = self.special_ids if skip_special_tokens else frozenset[int]()
        data = b"".join(self.token_bytes(token_id) for token_id in token_ids if token_id not in skipped)
        for _ in range(self.codec.strip_start):
            data = data.removeprefix(b" ")
        return data.decode(errors="replace")

    def chat_template(self, tools: Sequence[Mapping[str, Any]] | None = None) -> ChatTemplate:
        """The template for a chat with these tools. Raises RequestError if the model has none."""
        return select_template(self.templates, tools)

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = False,
        variables: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> str:
        """A chat as the model's own text, in the form its template takes. Raises RequestError.

        `variables` are the template's own (`enable_thinking`, ...); `now` is the
        time for templates that print the date, by default the clock's.
        """
        return self.chat_template(tools).apply(
            messages, tools, add_generation_prompt=add_generation_prompt, variables=variables, now=now
        )


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder. Raises ModelError."""
    names = [*SIDE_FILES, *(f"additional_chat_templates/{path.name}" for path in _extra_templates(folder))]
    side_files = {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}
    if not side_files:
        raise ModelError(f"no tokenizer in {folder}", expected="tokenizer.json")
    config_path = folder / "config.json"
    config = _read_json(
        {"config.json": config_path.read_bytes()} if config_path.is_file() else {}, "config.json"
    )
    return Tokenizer.from_files(side_files, config)


def _extra_templates(folder: Path) -> list[Path]:
    return sorted((folder / "additional_chat_templates").glob("*.jinja"))


def _read_backend(side_files: Mapping[str, bytes]) -> tokenizers.Tokenizer:
    if "tokenizer.json" not in side_files:
        raise ModelError(
            "the model has no tokenizer.json",
            found=", ".join(sorted(side_files)) or "no tokenizer files",
            hint="save it with transformers: AutoTokenizer.from_pretrained(MODEL).save_pretrained(MODEL)",
        )
    data = side_files["tokenizer.json"]
    try:
        backend = tokenizers.Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises Exception itself
        raise ModelError("tokenizer.json can't be read", found=str(error)) from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _decoder(backend: tokenizers.Tokenizer) -> Mapping[str, Any] | None:
    """The decoder as in tokenizer.json, from its pickled state: a large file is not parsed a second time."""
    decoder = backend.decoder
    return None if decoder is None else dict(json.loads(decoder.__getstate__()))


def _read_json(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    if name not in files:
        return {}
    try:
        value = json.loads(files[name])
    except (ValueError, UnicodeDecodeError) as error:
        raise ModelError(f"{name} is not valid JSON", found=str(error)) from error
    if not isinstance(value, dict):
        raise ModelError(f"{name} is not a JSON object", found=type(value).__name__)
    return value


def _token_text(value: object) -> str | None:
    """A token as tokenizer_config writes it: text, or an object with `content`."""
    content = value.get("content") if isinstance(value, Mapping) else value
    return content if isinstance(content, str) else None


def _named_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    named = {name: _token_text(settings.get(name)) for name in _NAMED_TOKENS}
    return {name: text for name, text in named.items() if text is not None}


def _add_missing_tokens(backend: tokenizers.Tokenizer, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Add what tokenizer_config's `added_tokens_decoder` has beyond tokenizer.json, each at its own id."""
    for token_id, entry in sorted((int(key), entry) for key, entry in entries.items()):
        content = str(entry["content"])
        found = backend.token_to_id(content)
        if found is None:
            flags = {
                flag: bool(entry[flag])
                for flag in ("single_word", "lstrip", "rstrip", "normalized", "special")
                if flag in entry
            }
            backend.add_tokens([tokenizers.AddedToken(content, **flags)])
            found = backend.token_to_id(content)
        if found != token_id:
            raise ModelError(
                f"tokenizer_config.json and tokenizer.json disagree on the id of {content!r}",
                found=found,
                expected=token_id,
            )


def _mark_special(backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str]) -> None:
    """Make named tokens special; one that is in no vocabulary has no embedding and is left out."""
    known = [text for text in special_tokens.values() if backend.token_to_id(text) is not None]
    backend.add_special_tokens(sorted(set(known)))


def _end_tokens(
    backend: tokenizers.Tokenizer,
    configs: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
    special_tokens: Mapping[str, str],
) -> tuple[int, ...]:
    ids: list[int] = []
    for config in configs:
        listed = config.get("eos_token_id")
        ids += [listed] if isinstance(listed, int) else listed or []
    extra = settings.get("extra_special_tokens")
    named = {**(extra if isinstance(extra, Mapping) else {}), **settings, **special_tokens}
    for name in _END_TOKENS:
        text = _token_text(named.get(name))
        token_id = None if text is None else backend.token_to_id(text)
        ids += [] if token_id is None else [token_id]
    return tuple(dict.fromkeys(ids))


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"a lone surrogate at character {error.start}"
        raise RequestError("the text is not valid Unicode", found=found) from error
