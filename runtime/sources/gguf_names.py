"""File names of a split GGUF: `model-00001-of-00003.gguf` and so on."""

from __future__ import annotations

import re
from pathlib import Path

from gristmill.runtime.errors import ModelError

__all__ = ["gguf_parts", "split_name"]

_SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def split_name(name: str) -> tuple[str, int, int] | None:
    """Stem, number and count of a part's file name; None for any other name."""
    match = _SPLIT_NAME.fullmatch(name)
    if match is None or not 1 <= int(match["number"]) <= int(match["count"]):
        return None
    return match["stem"], int(match["number"]), int(match["count"])


def gguf_parts(path: Path) -> tuple[Path, ...]:
    """All parts of a split GGUF from its first one, or the file itself.

    Raises ModelError if a part is missing or `path` is not the first one.
    """
    split = split_name(path.name)
    if split is None:
        return (path,)
    stem, number, count = split
    parts = tuple(path.with_name(f"{stem}-{index:05d}-of-{count:05d}.gguf") for index in range(1, count + 1))
    if number != 1:
        raise ModelError(
            f"{path.name} is part {number} of a split model", hint=f"give the first part, {parts[0]}"
        )
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise ModelError(
            f"parts of {path.name} are missing", found=", ".join(missing), expected=f"{count} parts"
        )
    return parts
