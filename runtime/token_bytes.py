"""The bytes behind each token, read from the decoder that `tokenizer.json` names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.runtime.errors import UnsupportedError

__all__ = ["TokenCodec", "read_codec"]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class TokenCodec:
    """How a vocabulary entry spells bytes.

    `alphabet` maps the printable stand-ins of byte-level BPE (GPT-2) to bytes;
    without it an entry is UTF-8 text in which `replacements` are applied and,
    with `byte_fallback`, `<0x0A>` is one raw byte. `strip_start` is the number
    of spaces that decoding takes off the start of a text.
    """

    alphabet: Mapping[str, int] | None = None
    replacements: tuple[tuple[str, str], ...] = ()
    byte_fallback: bool = False
    strip_start: int = 0

    def encode(self, token: str) -> bytes:
        """The bytes that a vocabulary entry stands for."""
        if self.alphabet is not None:
            try:
                return bytes([self.alphabet[character] for character in token])
            except KeyError:  # an added token written in plain text
                return token.encode()
        for old, new in self.replacements:
            token = token.replace(old, new)
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return token.encode()


def read_codec(decoder: Mapping[str, Any] | None) -> TokenCodec:
    """The codec for the `decoder` of a `tokenizer.json`. Raises UnsupportedError for one we can't stream."""
    steps = _steps(decoder)
    if any(step["type"] == "ByteLevel" for step in steps):
        return TokenCodec(alphabet=_byte_level_alphabet())
    replacements: list[tuple[str, str]] = []
    byte_fallback = False
    strip_start = 0
    for step in steps:
        match step:
            case {"type": "ByteFallback"}:
                byte_fallback = True
            case {"type": "Fuse"}:
                pass
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                replacements.append((old, new))
            case {"type": "Strip", "content": " ", "start": int(start), "stop": 0}:
                strip_start = start
            case {"type": "Metaspace", "replacement": str(mark), **rest}:
                replacements.append((mark, " "))
                strip_start = int(_adds_leading_space(rest))
            case _:
                raise UnsupportedError(
                    "tokenizer.json has a decoder that we can't stream",
                    found=step.get("type"),
                    expected="ByteLevel, or steps of Replace, ByteFallback, Fuse, Strip, Metaspace",
                )
    return TokenCodec(None, tuple(replacements), byte_fallback, strip_start)


def _adds_leading_space(metaspace: Mapping[str, Any]) -> bool:
    scheme = metaspace.get("prepend_scheme")
    return scheme != "never" if scheme is not None else bool(metaspace.get("add_prefix_space", True))


def _steps(decoder: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    if decoder is None:
        return ({"type": None},)
    if decoder.get("type") != "Sequence":
        return (decoder,)
    return [step for inner in decoder["decoders"] for step in _steps(inner)]


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 stands for itself, every other byte for a character from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return alphabet
