"""Which tensors a model made from GGUF must have, and in which shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gristmill.runtime.errors import ModelError, UnsupportedError
from gristmill.runtime.sources.gguf_tensors import MappedTensor

__all__ = ["check_tensors"]


def check_tensors(tensors: Mapping[str, MappedTensor], config: Mapping[str, Any], path: Path) -> None:
    """Every tensor of the model is there with the shape the metadata says, and no other.

    Raises ModelError naming the tensor.
    """
    known: set[str] = set()
    # The layer count is only a number in the file: the first missing layer ends the loop.
    for name, shape in _expected_shapes(config):
        known.add(name)
        if name not in tensors:
            raise ModelError(f"tensor {name} is missing in {path}", expected=f"shape {list(shape)}")
        found = tensors[name].stored.shape
        if found != shape:
            raise ModelError(
                f"tensor {tensors[name].stored.name} of {path}",
                found=f"shape {list(found)}",
                expected=f"{list(shape)} from the metadata",
            )
    extra = sorted(tensors.keys() - known)
    if extra:
        raise UnsupportedError(
            f"tensor {tensors[extra[0]].stored.name} of {path}",
            expected=f"only the tensors of a {config['architectures'][0]}",
        )


def _expected_shapes(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, mlp, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden)
    is_qwen2 = config["model_type"] == "qwen2"
    attention_bias = is_qwen2 or config["attention_bias"]
    for layer in (f"model.layers.{index}" for index in range(config["num_hidden_layers"])):
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        if config["model_type"] == "qwen3":
            yield f"{layer}.self_attn.q_norm.weight", (head_dim,)
            yield f"{layer}.self_attn.k_norm.weight", (head_dim,)
        for name, rows, columns in (("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, q)):
            yield f"{layer}.self_attn.{name}_proj.weight", (rows, columns)
            if attention_bias and not (is_qwen2 and name == "o"):
                yield f"{layer}.self_attn.{name}_proj.bias", (rows,)
        for name, rows, columns in (("gate", mlp, hidden), ("up", mlp, hidden), ("down", hidden, mlp)):
            yield f"{layer}.mlp.{name}_proj.weight", (rows, columns)
            if config.get("mlp_bias", False):
                yield f"{layer}.mlp.{name}_proj.bias", (rows,)
