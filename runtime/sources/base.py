"""What a source model offers: its configuration, its tensors one by one, its side files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["SIDE_FILES", "ModelSource", "Tensor"]

Tensor = NDArray[np.generic]
"""float32, float16 or (ml_dtypes) bfloat16; integers in packed checkpoints."""

SIDE_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""Files that must survive from the source to the artifact beside `config.json`."""


class ModelSource(Protocol):
    """A model as files, whatever the container: nothing is loaded before it is asked for."""

    @property
    def name(self) -> str:
        """The source as the user wrote it."""

    @property
    def revision(self) -> str | None:
        """The commit of a hub model, None for what has no revisions."""

    @property
    def config(self) -> Mapping[str, Any]:
        """A Hugging Face `config.json`; made from the metadata where the container has none."""

    def tensor_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor by its Hugging Face name, without reading its data."""

    def load(self, name: str) -> Tensor:
        """One tensor's data. Raises ModelError if it is missing or cut short."""

    def side_files(self) -> Mapping[str, bytes]:
        """The files of `SIDE_FILES` that exist, by name; made from metadata where need be."""

    def digest(self) -> str:
        """`sha256:...` over everything above, independent of where the files lie."""
