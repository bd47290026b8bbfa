"""Quantities as a person reads and types them."""

from __future__ import annotations

import re

from gristmill.runtime.errors import InputError

__all__ = ["human_bytes", "parse_size"]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def human_bytes(size: float) -> str:
    """A size in the largest unit that keeps it above one: `114.2 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def parse_size(text: str, option: str = "--memory") -> int:
    """Bytes from `8GiB`, `500MB` or a plain number. Raises InputError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?)?b?\s*", text, re.IGNORECASE)
    if match is None:
        raise InputError(option, found=f'"{text}"', expected="a size such as 8GiB or 500MB")
    return int(float(match[1]) * _UNITS[(match[2] or "").lower()])
