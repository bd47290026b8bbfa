"""A Hugging Face configuration from GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.errors import ModelError, UnsupportedError
from gristmill.runtime.sources.gguf_container import GgufTensor
from gristmill.runtime.sources.gguf_metadata import GgufMetadata, shortest_float
from gristmill.runtime.sources.gguf_tensors import ROPE_FACTORS, read_values

__all__ = ["generation_config", "model_config"]

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_READ_KEYS = {
    "vocab_size",
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    # Without effect on the result:
    "tensor_data_layout",
    "rope.scaling.finetuned",
}
_MUST_BE = {
    "expert_count": 0,
    "expert_used_count": 0,
    "attention.causal": True,
    "use_parallel_residual": False,
}
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def model_config(metadata: GgufMetadata, tensors: Mapping[str, GgufTensor]) -> dict[str, Any]:
    """`config.json` without its `dtype`. Raises UnsupportedError naming what it can't express."""
    architecture = metadata.text("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise UnsupportedError(
            f"architecture of {metadata.path}", found=architecture, expected=", ".join(_ARCHITECTURES)
        )
    kind = metadata.text("general.type", "model")
    if kind != "model":
        raise UnsupportedError(f"{metadata.path} is not a whole model", found=f"general.type {kind}")
    _refuse_unread_keys(metadata, architecture)
    hidden = metadata.integer(f"{architecture}.embedding_length")
    heads = metadata.integer(f"{architecture}.attention.head_count")
    if heads < 1:
        raise ModelError(f"{architecture}.attention.head_count of {metadata.path}", found=heads)
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(f"{metadata.path} has no matrix token_embd.weight")
    vocabulary = embedding.shape[0]
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[architecture]],
        "model_type": architecture,
        "hidden_size": hidden,
        "num_hidden_layers": metadata.integer(f"{architecture}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.integer(f"{architecture}.attention.head_count_kv", heads),
        "head_dim": _head_dim(metadata, architecture, hidden // heads),
        "intermediate_size": metadata.integer(f"{architecture}.feed_forward_length"),
        "hidden_act": "silu",
        "max_position_embeddings": metadata.integer(f"{architecture}.context_length"),
        "rms_norm_eps": metadata.number(f"{architecture}.attention.layer_norm_rms_epsilon"),
        "rope_theta": metadata.number(f"{architecture}.rope.freq_base", 10000.0),
        "rope_scaling": None,
        "tie_word_embeddings": "output.weight" not in tensors,
        "vocab_size": vocabulary,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
        **_biases(architecture, tensors),
        **_special_ids(metadata, vocabulary),
    }
    config["rope_scaling"] = _rope_scaling(metadata, architecture, config, tensors.get(ROPE_FACTORS))
    return config


def _refuse_unread_keys(metadata: GgufMetadata, architecture: str) -> None:
    """A key that we don't read may change the result, so it can't be passed over."""
    prefix = f"{architecture}."
    for key, value in metadata.values.items():
        name = key.removeprefix(prefix)
        if name == key or name in _READ_KEYS or (name in _MUST_BE and value == _MUST_BE[name]):
            continue
        raise UnsupportedError(
            f"{key} of {metadata.path}", found=repr(value)[:80], expected="a model without it"
        )


def _head_dim(metadata: GgufMetadata, architecture: str, default: int) -> int:
    head_dim = metadata.integer(f"{architecture}.attention.key_length", default)
    for key in ("attention.value_length", "rope.dimension_count"):
        other = metadata.integer(f"{architecture}.{key}", head_dim)
        if other != head_dim:
            raise UnsupportedError(
                f"{architecture}.{key} of {metadata.path}", found=other, expected=f"{head_dim}, the head size"
            )
    if head_dim < 2 or head_dim % 2:
        raise ModelError(f"head size of {metadata.path}", found=head_dim, expected="an even number")
    return head_dim


def _biases(architecture: str, tensors: Mapping[str, GgufTensor]) -> dict[str, bool]:
    """The bias flags of the architecture; Qwen2's are implied by its name."""
    if architecture == "qwen2":
        return {"use_sliding_window": False}
    flags = {"attention_bias": "blk.0.attn_q.bias" in tensors}
    if architecture == "llama":
        flags["mlp_bias"] = "blk.0.ffn_gate.bias" in tensors
    return flags


def _special_ids(metadata: GgufMetadata, vocabulary: int) -> dict[str, int]:
    names = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}
    found = {target: metadata.token(name, vocabulary) for name, target in names.items()}
    return {target: token for target, token in found.items() if token is not None}


def _rope_scaling(
    metadata: GgufMetadata, architecture: str, config: Mapping[str, Any], factors: GgufTensor | None
) -> dict[str, Any] | None:
    prefix = f"{architecture}.rope.scaling."
    kind = metadata.text(f"{prefix}type", "none")
    original = f"{prefix}original_context_length"
    if factors is not None:
        if kind != "none":
            raise UnsupportedError(f"{prefix}type of {metadata.path} beside {ROPE_FACTORS}", found=kind)
        return _llama3_scaling(config, factors)
    if kind == "none":
        return None
    factor = metadata.number(f"{prefix}factor")
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        length = metadata.integer(original)
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": length}
    raise UnsupportedError(f"{prefix}type of {metadata.path}", found=kind, expected="none, linear or yarn")


def _llama3_scaling(config: Mapping[str, Any], factors: GgufTensor) -> dict[str, Any]:
    """The parameters of Llama 3 scaling whose divisors are `factors`.

    llama.cpp stores the divisors, not the parameters. Every Llama 3.1 to 3.3
    has the bounds 1, 4 and 8192; the factor is the greatest divisor.
    """
    found = read_values(factors)
    scaling = {
        "rope_type": "llama3",
        "factor": float(found.max(initial=1.0)),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    if 2 * found.size != config["head_dim"] or not np.allclose(
        found, _llama3_divisors(config["rope_theta"], config["head_dim"], scaling), rtol=1e-4
    ):
        raise UnsupportedError(
            f"{ROPE_FACTORS} of {factors.file}",
            found=f"{found.size} divisors up to {scaling['factor']:g}",
            expected="those of Llama 3 scaling with an original context of 8192",
        )
    return scaling


def _llama3_divisors(theta: float, head_dim: int, scaling: Mapping[str, Any]) -> NDArray[np.float64]:
    exponents: NDArray[np.float64] = np.arange(0, head_dim, 2) / head_dim
    wavelengths: NDArray[np.float64] = 2 * math.pi * np.power(theta, exponents)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] / wavelengths
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    divisors: NDArray[np.float64] = 1.0 / ((1.0 - smooth) / scaling["factor"] + smooth)
    return divisors


def generation_config(metadata: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """`generation_config.json`: all tokens that end a reply, and the file's sampling defaults if any."""
    ends = [metadata.token(name, config["vocab_size"]) for name in ("eos", "eot", "eom")]
    result: dict[str, Any] = {key: config[key] for key in ("bos_token_id", "pad_token_id") if key in config}
    end_tokens = list(dict.fromkeys(token for token in ends if token is not None))
    if end_tokens:
        result["eos_token_id"] = end_tokens
    for key, name in _SAMPLING.items():
        value = metadata.values.get(f"general.sampling.{key}")
        if value is not None:
            result |= {"do_sample": True, name: shortest_float(value) if isinstance(value, float) else value}
    return result
