"""Typed access to the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gristmill.runtime.errors import ModelError, UnsupportedError

__all__ = ["GgufMetadata", "shortest_float"]

T = TypeVar("T")


class GgufMetadata:
    """Metadata by key; a key that is missing or of another type is a ModelError naming key and file."""

    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        self.values = values
        self.path = path

    def text(self, key: str, default: str | None = None) -> str:
        """A string. Without `default` the key must be there."""
        return self._typed(key, str, default)

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number; an array of one number a layer is refused."""
        if isinstance(self.values.get(key), list):
            raise UnsupportedError(f"{key} of {self.path}", found="one value a layer", expected="one number")
        return self._typed(key, int, default)

    def number(self, key: str, default: float | None = None) -> float:
        """A float, by `shortest_float`."""
        return shortest_float(self._typed(key, float, default))

    def boolean(self, key: str, default: bool) -> bool:
        """A flag."""
        return self._typed(key, bool, default)

    def items(self, key: str, kind: type[T], count: int | None = None) -> list[T]:
        """An array whose elements are of type `kind`, `count` of them if given."""
        values: list[T] = self._typed(key, list, None)
        # All elements of a GGUF array have one type.
        if values and not isinstance(values[0], kind):
            raise ModelError(
                f"elements of {key} in {self.path}", found=type(values[0]).__name__, expected=kind.__name__
            )
        if count is not None and len(values) != count:
            raise ModelError(f"{key} of {self.path}", found=f"{len(values)} entries", expected=count)
        return values

    def token(self, name: str, vocabulary: int) -> int | None:
        """The id `tokenizer.ggml.{name}_token_id` if it is set."""
        key = f"tokenizer.ggml.{name}_token_id"
        if key not in self.values:
            return None
        value = self.integer(key)
        if not 0 <= value < vocabulary:
            raise ModelError(f"{key} of {self.path}", found=value, expected=f"below {vocabulary}")
        return value

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def _typed(self, key: str, kind: type[T], default: T | None) -> T:
        if key not in self.values:
            if default is not None:
                return default
            raise ModelError(
                f"{self.path} has no {key}", hint="convert the model again with a current llama.cpp"
            )
        value = self.values[key]
        if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
            raise ModelError(f"{key} of {self.path}", found=repr(value)[:80], expected=kind.__name__)
        return value


def shortest_float(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))
