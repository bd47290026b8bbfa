"""GGUF tensors as Hugging Face tensors: names, the order of rotary rows, dequantization."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from gristmill.runtime.errors import ModelError, UnsupportedError
from gristmill.runtime.sources.base import Tensor
from gristmill.runtime.sources.gguf_container import GgufTensor

__all__ = ["ROPE_FACTORS", "MappedTensor", "load_tensor", "map_tensors", "model_dtype", "read_values"]

ROPE_FACTORS = "rope_freqs.weight"
"""Divisors of the rotary frequencies: a part of the configuration, not a weight."""

_Type = GGMLQuantizationType
_FLOATS: Mapping[GGMLQuantizationType, np.dtype[Any]] = {
    _Type.F32: np.dtype(np.float32),
    _Type.F16: np.dtype(np.float16),
    _Type.BF16: np.dtype(ml_dtypes.bfloat16),
}
_QUANTIZED = (
    _Type.Q4_0,
    _Type.Q4_1,
    _Type.Q5_0,
    _Type.Q5_1,
    _Type.Q8_0,
    _Type.Q4_K,
    _Type.Q5_K,
    _Type.Q6_K,
)
_MODEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_CHUNK_VALUES = 1 << 22


@dataclass(frozen=True, slots=True)
class MappedTensor:
    """A GGUF tensor under its Hugging Face name.

    `rotary_heads` is the number of heads whose rows stand in the interleaved
    rotary order, 0 for a tensor that is stored as it is.
    """

    stored: GgufTensor
    rotary_heads: int = 0


def map_tensors(
    tensors: Mapping[str, GgufTensor], architecture: str, heads: int, kv_heads: int
) -> dict[str, MappedTensor]:
    """Every weight by its Hugging Face name. Raises UnsupportedError for a tensor without one.

    llama.cpp's converter reorders the rows of q and k for architecture
    `llama` only; the other ones use the half-split rotary layout themselves.
    """
    mapped: dict[str, MappedTensor] = {}
    for name, tensor in tensors.items():
        if name == ROPE_FACTORS:
            continue
        hugging_face = _hugging_face_name(name)
        if hugging_face is None:
            raise UnsupportedError(
                f"tensor {name} of {tensor.file}",
                expected=f"only tensors that a {architecture} model without experts has",
            )
        _check_type(tensor)
        rotary_heads = _rotary_heads(name, heads, kv_heads) if architecture == "llama" else 0
        mapped[hugging_face] = MappedTensor(tensor, rotary_heads)
    return mapped


def _hugging_face_name(name: str) -> str | None:
    if name in _MODEL_NAMES:
        return _MODEL_NAMES[name]
    match = _BLOCK_TENSOR.fullmatch(name)
    if match is None or match[2] not in _BLOCK_NAMES:
        return None
    return f"model.layers.{int(match[1])}.{_BLOCK_NAMES[match[2]]}.{match[3]}"


def _rotary_heads(name: str, heads: int, kv_heads: int) -> int:
    match = _BLOCK_TENSOR.fullmatch(name)
    return {"attn_q": heads, "attn_k": kv_heads}.get(match[2], 0) if match else 0


def _check_type(tensor: GgufTensor) -> None:
    if tensor.type not in _FLOATS and tensor.type not in _QUANTIZED:
        known = ", ".join(kind.name for kind in (*_QUANTIZED, *_FLOATS))
        raise UnsupportedError(
            f"tensor {tensor.name} of {tensor.file}",
            found=f"type {tensor.type.name}",
            expected=f"one of {known}",
        )


def model_dtype(tensors: Mapping[str, MappedTensor]) -> np.dtype[Any]:
    """The type all matrices share if it is a float type, else bfloat16.

    Vectors are always float32 in a GGUF and so have no say.
    """
    types = {tensor.stored.type for tensor in tensors.values() if len(tensor.stored.shape) > 1}
    shared = types.pop() if len(types) == 1 else _Type.BF16
    return _FLOATS.get(shared, _FLOATS[_Type.BF16])


def load_tensor(tensor: MappedTensor, dtype: np.dtype[Any]) -> Tensor:
    """Read one tensor as `dtype`, rows in Hugging Face order.

    Quantized values are computed in float32 and rounded to `dtype` to nearest
    even, a few megabytes at a time. Raises ModelError if the file shrank or
    a value is beyond the range of `dtype`.
    """
    stored = tensor.stored
    out: Tensor = np.empty(stored.shape, dtype)
    rows = out.reshape(-1, stored.shape[-1]) if stored.shape else out.reshape(1, 1)
    start = 0
    try:
        # NaN and infinities that the file holds pass through: who uses a weight checks it.
        with np.errstate(invalid="ignore", over="raise"):
            for values in _row_chunks(stored, len(rows)):
                rows[start : start + len(values)] = values.astype(dtype, copy=False)
                start += len(values)
    except FloatingPointError as error:
        raise ModelError(f"tensor {stored.name} of {stored.file} does not fit {dtype.name}") from error
    return _half_split(out, tensor.rotary_heads) if tensor.rotary_heads else out


def read_values(tensor: GgufTensor) -> NDArray[np.float32]:
    """A small tensor as float32, flat."""
    return np.concatenate([chunk.astype(np.float32).ravel() for chunk in _row_chunks(tensor, 1)])


def _row_chunks(tensor: GgufTensor, rows: int) -> Iterator[Tensor]:
    """The tensor's rows in order, some at a time: float32 for quantized types, else its own type."""
    row_bytes = tensor.nbytes // max(rows, 1)
    row_values = max(1, tensor.shape[-1] if tensor.shape else 1)
    step = max(1, _CHUNK_VALUES // row_values)
    try:
        with tensor.file.open("rb") as file:
            file.seek(tensor.offset)
            for start in range(0, rows, step):
                count = min(step, rows - start)
                raw = file.read(count * row_bytes)
                if len(raw) < count * row_bytes:
                    raise ModelError(f"{tensor.file} is cut short in tensor {tensor.name}")
                yield _values(np.frombuffer(raw, np.uint8).reshape(count, row_bytes), tensor.type)
    except OSError as error:
        raise ModelError(f"can't read {tensor.file}", found=error.strerror) from error


def _values(raw: NDArray[np.uint8], kind: GGMLQuantizationType) -> Tensor:
    if kind in _FLOATS:
        return raw.view(_FLOATS[kind])
    values: Tensor = dequantize(raw, kind)
    return values


def _half_split(rows: Tensor, heads: int) -> Tensor:
    """Rows of each head from pairs (0, 1), (2, 3), ... back to pairs (0, d/2), (1, d/2 + 1), ..."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
