"""Tiny GGUF files with any metadata and any tensor types, written by the gguf package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import quantize
from numpy.typing import NDArray

HIDDEN, HEADS, KV_HEADS, LAYERS, MLP = 256, 4, 2, 2, 512
SPECIAL = ("<|end|>", "<|begin|>", "<|turn|>")


def byte_alphabet() -> list[str]:
    """GPT-2's 256 stand-ins for bytes."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def tiny_metadata(arch: str = "llama") -> dict[str, Any]:
    """Metadata of a tiny model with a byte-level tokenizer of 261 tokens."""
    tokens = [*SPECIAL, *byte_alphabet(), "Ġt", "he"]
    return {
        "general.architecture": arch,
        f"{arch}.block_count": LAYERS,
        f"{arch}.context_length": 128,
        f"{arch}.embedding_length": HIDDEN,
        f"{arch}.feed_forward_length": MLP,
        f"{arch}.attention.head_count": HEADS,
        f"{arch}.attention.head_count_kv": KV_HEADS,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)),
        "tokenizer.ggml.merges": ["Ġ t", "h e"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.padding_token_id": 0,
    }


def tiny_tensors(arch: str = "llama", *, tied: bool = True) -> dict[str, NDArray[np.float32]]:
    """Random weights under GGUF names."""
    rng = np.random.default_rng(0)
    kv = KV_HEADS * HIDDEN // HEADS
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (261, HIDDEN), "output_norm.weight": (HIDDEN,)}
    if not tied:
        shapes["output.weight"] = (261, HIDDEN)
    for block in (f"blk.{index}" for index in range(LAYERS)):
        shapes |= {
            f"{block}.attn_norm.weight": (HIDDEN,),
            f"{block}.attn_q.weight": (HIDDEN, HIDDEN),
            f"{block}.attn_k.weight": (kv, HIDDEN),
            f"{block}.attn_v.weight": (kv, HIDDEN),
            f"{block}.attn_output.weight": (HIDDEN, HIDDEN),
            f"{block}.ffn_norm.weight": (HIDDEN,),
            f"{block}.ffn_gate.weight": (MLP, HIDDEN),
            f"{block}.ffn_up.weight": (MLP, HIDDEN),
            f"{block}.ffn_down.weight": (HIDDEN, MLP),
        }
        if arch == "qwen2":
            shapes |= {
                f"{block}.attn_{name}.bias": (rows,) for name, rows in (("q", HIDDEN), ("k", kv), ("v", kv))
            }
        if arch == "qwen3":
            shapes |= {f"{block}.attn_{name}_norm.weight": (HIDDEN // HEADS,) for name in "qk"}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@dataclass
class GgufRecipe:
    """What to write: change `metadata` (None removes a key) and `tensors` before `write`."""

    arch: str = "llama"
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, NDArray[Any]] = field(default_factory=dict)
    types: dict[str, gguf.GGMLQuantizationType] = field(default_factory=dict)
    matrices: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32
    parts: int = 1

    def write(self, path: Path) -> Path:
        """Write the file, or with `parts` > 1 the parts, and return the (first) path."""
        per_part = -(-len(self.tensors) // self.parts) if self.parts > 1 else 0
        writer = gguf.GGUFWriter(path, self.arch, split_max_tensors=per_part)
        for key, value in self.metadata.items():
            if value is not None and key != "general.architecture":
                _add(writer, key, value)
        if self.metadata["general.architecture"] is None:
            del writer.kv_data[0]["general.architecture"]
        for name, data in self.tensors.items():
            kind = self.types.get(name, self.matrices if data.ndim > 1 else gguf.GGMLQuantizationType.F32)
            raw = data if data.dtype == np.uint8 else quantize(data, kind)
            writer.add_tensor(name, raw, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path if self.parts == 1 else path.with_name(f"{path.stem}-00001-of-{self.parts:05d}.gguf")


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


RecipeFactory = Callable[..., GgufRecipe]


@pytest.fixture
def gguf_recipe() -> RecipeFactory:
    """A recipe for a tiny GGUF of an architecture; `metadata` is laid over that of `tiny_metadata`."""

    def make(
        arch: str = "llama",
        *,
        tied: bool = True,
        matrices: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
        metadata: Mapping[str, Any] | None = None,
    ) -> GgufRecipe:
        values = tiny_metadata(arch) | dict(metadata or {})
        return GgufRecipe(arch, values, dict(tiny_tensors(arch, tied=tied)), matrices=matrices)

    return make


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole tiny model in Q4_0."""
    kind = gguf.GGMLQuantizationType.Q4_0
    recipe = GgufRecipe("llama", tiny_metadata(), dict(tiny_tensors()), matrices=kind)
    return recipe.write(tmp_path_factory.mktemp("tiny-gguf") / "tiny.gguf")
