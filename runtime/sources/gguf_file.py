"""A GGUF file, whole or split, as a Hugging Face model.

Quantized tensors are dequantized one by one and rounded to bfloat16. A file
whose matrices are all F16, all F32 or all BF16 keeps that type. Norms and
biases, which GGUF stores in float32, take the type of the matrices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gristmill.runtime.errors import ModelError
from gristmill.runtime.files import canonical_json
from gristmill.runtime.sources.base import Tensor
from gristmill.runtime.sources.digest import content_digest
from gristmill.runtime.sources.gguf_config import generation_config, model_config
from gristmill.runtime.sources.gguf_container import read_gguf
from gristmill.runtime.sources.gguf_metadata import GgufMetadata
from gristmill.runtime.sources.gguf_shapes import check_tensors
from gristmill.runtime.sources.gguf_tensors import load_tensor, map_tensors, model_dtype
from gristmill.runtime.sources.gguf_tokenizer import tokenizer_files

__all__ = ["GgufFile"]


class GgufFile:
    """A ModelSource over the parts of one GGUF, in order; everything but tensor data is read at once.

    Raises ModelError for a file that is damaged or says too little about its
    model, and UnsupportedError, naming the key or tensor, for what we can't read.
    """

    def __init__(self, parts: Sequence[Path], name: str | None = None) -> None:
        self.parts = tuple(parts)
        self._name = name if name is not None else str(parts[0])
        container = read_gguf(parts)
        metadata = GgufMetadata(container.metadata, parts[0])
        config = model_config(metadata, container.tensors)
        self._tensors = map_tensors(
            container.tensors,
            config["model_type"],
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
        )
        check_tensors(self._tensors, config, parts[0])
        self._dtype = model_dtype(self._tensors)
        # Version 5 of transformers reads `dtype`, readers of version 4 know `torch_dtype`.
        self._config = config | {"dtype": self._dtype.name, "torch_dtype": self._dtype.name}
        self._side_files = tokenizer_files(metadata, config["max_position_embeddings"])
        self._side_files["generation_config.json"] = canonical_json(generation_config(metadata, config))

    @property
    def name(self) -> str:
        """The source as the user wrote it."""
        return self._name

    @property
    def revision(self) -> str | None:
        """None: a file has no revisions."""
        return None

    @property
    def config(self) -> Mapping[str, Any]:
        """`config.json`, made from the metadata."""
        return self._config

    def tensor_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor by its Hugging Face name."""
        return {name: tensor.stored.shape for name, tensor in self._tensors.items()}

    def load(self, name: str) -> Tensor:
        """One tensor, dequantized, its rows in Hugging Face order. Raises ModelError."""
        if name not in self._tensors:
            raise ModelError(f"tensor {name} is missing in {self.parts[0]}")
        return load_tensor(self._tensors[name], self._dtype)

    def side_files(self) -> Mapping[str, bytes]:
        """Tokenizer, chat template and generation defaults, made from the metadata."""
        return self._side_files

    def digest(self) -> str:
        """`sha256:...` over the parts and over what was made from their metadata."""
        weights = {f"part-{number:05d}": path for number, path in enumerate(self.parts, 1)}
        return content_digest(self._config, self._side_files, weights)
