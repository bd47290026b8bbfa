"""What a prompt file holds, told from its suffix: the one table for recipes and for calibration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

__all__ = ["PromptKind", "prompt_kind"]

PromptKind = Literal["chat", "text", "tokens"]

_KINDS: Mapping[str, PromptKind] = MappingProxyType(
    {
        ".jsonl": "chat",
        ".txt": "text",
        ".md": "text",
        ".json": "tokens",
        ".npy": "tokens",
        ".safetensors": "tokens",
    }
)


def prompt_kind(path: Path) -> PromptKind | None:
    """The kind by suffix, `.gz` set aside; None where the suffix does not tell."""
    return _KINDS.get((path.with_suffix("") if path.suffix == ".gz" else path).suffix)
