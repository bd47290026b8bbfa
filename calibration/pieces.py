"""One prompt file as a stream of pieces of text, every fault in it found first."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gristmill.calibration.packing import Piece
from gristmill.calibration.prompt_files import Fault, FileFault, read_bytes
from gristmill.calibration.records import ChatRecord, read_chats, record_hash
from gristmill.calibration.text_windows import text_windows
from gristmill.calibration.token_rows import read_token_rows
from gristmill.runtime.chat_form import Message
from gristmill.runtime.chat_messages import inline_calls, inline_tools
from gristmill.runtime.errors import RequestError
from gristmill.runtime.prompt_kind import PromptKind, prompt_kind
from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["PieceSource", "read_pieces"]

_BATCH = 64
TEMPLATE_DATE = datetime(2025, 1, 1)
"""What templates print as today, so that the same prompts give the same tokens on every day."""


@dataclass(frozen=True, slots=True)
class PieceSource:
    """What a file offers: its pieces in the order to use them, and sentences about what was done to it."""

    kind: PromptKind
    pieces: Iterator[Piece]
    warnings: tuple[str, ...] = ()


def read_pieces(
    path: Path,
    kind: PromptKind | None,
    tokenizer: Tokenizer,
    *,
    max_tokens: int,
    add_generation_prompt: bool,
    rng: random.Random | None,
) -> tuple[PieceSource | None, list[Fault]]:
    """Read and check one file; chats are rendered at once but encoded only as they are drawn.

    `rng` shuffles prompts and windows of text; ready-made rows keep their order.
    """
    kind = kind or prompt_kind(path)
    try:
        match kind:
            case "chat":
                return _chats(path, tokenizer, max_tokens, add_generation_prompt, rng)
            case "text":
                return _text(path, tokenizer, max_tokens, rng)
            case "tokens":
                rows, faults = read_token_rows(path, tokenizer.vocab_size, max_tokens)
                return PieceSource("tokens", iter(rows)), faults or _empty(path, rows)
            case _:
                return None, [Fault(path, None, "chat, text or token ids? Say which with kind")]
    except FileFault as error:
        return None, [error.fault]


def _empty(path: Path, items: Sequence[object]) -> list[Fault]:
    return [] if items else [Fault(path, None, "no prompts in it")]


def _text(
    path: Path, tokenizer: Tokenizer, max_tokens: int, rng: random.Random | None
) -> tuple[PieceSource | None, list[Fault]]:
    data = read_bytes(path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return None, [Fault(path, data.count(b"\n", 0, error.start) + 1, "not UTF-8")]
    if not text.strip():
        return None, _empty(path, ())
    windows = list(text_windows(text, tokenizer, max_tokens))
    if rng is not None:
        rng.shuffle(windows)
    return PieceSource("text", iter(windows)), []


def _chats(
    path: Path,
    tokenizer: Tokenizer,
    max_tokens: int,
    add_generation_prompt: bool,
    rng: random.Random | None,
) -> tuple[PieceSource | None, list[Fault]]:
    if not tokenizer.templates:
        return None, [Fault(path, None, "holds chats, but the model has no chat template")]
    records, faults = read_chats(path)
    rendered: list[tuple[str, str]] = []
    inlined = 0
    for record in records:
        try:
            messages, tools = _for_template(record, tokenizer)
            text = tokenizer.apply_chat_template(
                messages, tools, add_generation_prompt=add_generation_prompt, now=TEMPLATE_DATE
            )
        except RequestError as error:
            faults.append(Fault(path, record.line, error.line()))
            continue
        inlined += len(tools) < len(record.tools)
        rendered.append((text, record_hash(record)))
    if rng is not None:
        rng.shuffle(rendered)
    warnings = (
        f"{path.name}: the chat template shows no tools; those of {inlined} chats were put in their text",
    )
    source = PieceSource("chat", _encode(rendered, tokenizer, max_tokens), warnings if inlined else ())
    faults.sort(key=lambda fault: fault.line or 0)
    return source, faults or _empty(path, records)


def _for_template(
    record: ChatRecord, tokenizer: Tokenizer
) -> tuple[Sequence[Message], Sequence[Mapping[str, Any]]]:
    """Messages and tools such that the template leaves out nothing that the model would see in use."""
    form = tokenizer.chat_template(record.tools).form
    messages: Sequence[Message] = record.messages
    if not form.calls and any(message.get("tool_calls") for message in messages):
        messages = inline_calls(messages)
    if record.tools and not form.tools:
        return inline_tools(messages, record.tools), ()
    return messages, record.tools


def _encode(rendered: Sequence[tuple[str, str]], tokenizer: Tokenizer, max_tokens: int) -> Iterator[Piece]:
    for start in range(0, len(rendered), _BATCH):
        batch = rendered[start : start + _BATCH]
        encoded = tokenizer.encode_batch([text for text, _ in batch], add_special_tokens=False)
        for (_, name), ids in zip(batch, encoded, strict=True):
            yield Piece(tuple(ids[:max_tokens]), len(ids), len(ids) > max_tokens, frozenset({name}))
