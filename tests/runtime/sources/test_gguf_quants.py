"""Every tensor type we read, against a slow decoder written from the documented block layouts."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as _Type
from gguf.quants import quantize
from numpy.typing import NDArray

from gristmill.runtime.errors import ModelError, UnsupportedError
from gristmill.runtime.sources.gguf_file import GgufFile

_NAME = "blk.0.ffn_up.weight"
_HF_NAME = "model.layers.0.mlp.up_proj.weight"


def _half(block: bytes, offset: int) -> float:
    return float(struct.unpack_from("<e", block, offset)[0])


def _nibbles(block: bytes, offset: int) -> list[int]:
    """16 bytes hold values 0 to 15 in their low halves and 16 to 31 in their high halves."""
    return [b & 15 for b in block[offset : offset + 16]] + [b >> 4 for b in block[offset : offset + 16]]


def _fifth_bits(block: bytes, offset: int) -> list[int]:
    (bits,) = struct.unpack_from("<I", block, offset)
    return [bits >> index & 1 for index in range(32)]


def _q4_0(block: bytes) -> Iterator[float]:
    yield from (_half(block, 0) * (q - 8) for q in _nibbles(block, 2))


def _q4_1(block: bytes) -> Iterator[float]:
    yield from (_half(block, 0) * q + _half(block, 2) for q in _nibbles(block, 4))


def _q5_0(block: bytes) -> Iterator[float]:
    codes = zip(_nibbles(block, 6), _fifth_bits(block, 2), strict=True)
    yield from (_half(block, 0) * (low + 16 * high - 16) for low, high in codes)


def _q5_1(block: bytes) -> Iterator[float]:
    codes = zip(_nibbles(block, 8), _fifth_bits(block, 4), strict=True)
    yield from (_half(block, 0) * (low + 16 * high) + _half(block, 2) for low, high in codes)


def _q8_0(block: bytes) -> Iterator[float]:
    yield from (_half(block, 0) * q for q in struct.unpack_from("<32b", block, 2))


def _scale_and_min(packed: bytes, index: int) -> tuple[int, int]:
    """Six-bit scales and minima of 8 sub-blocks in 12 bytes."""
    if index < 4:
        return packed[index] & 63, packed[index + 4] & 63
    low = packed[index + 4]
    return low & 15 | packed[index - 4] >> 6 << 4, low >> 4 | packed[index] >> 6 << 4


def _q4_k(block: bytes) -> Iterator[float]:
    d, dmin = _half(block, 0), _half(block, 2)
    for index in range(8):
        scale, minimum = _scale_and_min(block[4:16], index)
        for byte in block[16 + 32 * (index // 2) : 48 + 32 * (index // 2)]:
            yield d * scale * (byte >> 4 if index % 2 else byte & 15) - dmin * minimum


def _q5_k(block: bytes) -> Iterator[float]:
    d, dmin = _half(block, 0), _half(block, 2)
    for index in range(8):
        scale, minimum = _scale_and_min(block[4:16], index)
        for column in range(32):
            byte, high = block[48 + 32 * (index // 2) + column], block[16 + column] >> index & 1
            yield d * scale * ((byte >> 4 if index % 2 else byte & 15) + 16 * high) - dmin * minimum


def _q6_k(block: bytes) -> Iterator[float]:
    d = _half(block, 208)
    for value in range(256):
        half, quarter, column = value // 128, value % 128 // 32, value % 32
        low = block[64 * half + 32 * (quarter % 2) + column]
        high = block[128 + 32 * half + column] >> 2 * quarter & 3
        code = (low >> 4 if quarter > 1 else low & 15) + 16 * high - 32
        (scale,) = struct.unpack_from("<b", block, 192 + value // 16)
        yield d * scale * code


_DECODERS: dict[_Type, Callable[[bytes], Iterator[float]]] = {
    _Type.Q4_0: _q4_0,
    _Type.Q4_1: _q4_1,
    _Type.Q5_0: _q5_0,
    _Type.Q5_1: _q5_1,
    _Type.Q8_0: _q8_0,
    _Type.Q4_K: _q4_k,
    _Type.Q5_K: _q5_k,
    _Type.Q6_K: _q6_k,
}


def _random_blocks(kind: _Type, rows: int, columns: int) -> NDArray[np.uint8]:
    """Blocks of random codes whose half-precision scales are ordinary numbers."""
    block, nbytes = GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(int(kind))
    raw = rng.integers(0, 256, (rows, columns // block, nbytes), np.uint8)
    halves = {
        _Type.Q4_1: (0, 2),
        _Type.Q5_1: (0, 2),
        _Type.Q4_K: (0, 2),
        _Type.Q5_K: (0, 2),
        _Type.Q6_K: (208,),
    }
    for offset in halves.get(kind, (0,)):
        values = rng.normal(0, 0.02, raw.shape[:2]).astype(np.float16)
        raw[..., offset : offset + 2] = values.view(np.uint8).reshape(*values.shape, 2)
    return raw.reshape(rows, -1)


def _decode(kind: _Type, raw: NDArray[np.uint8], shape: tuple[int, int]) -> NDArray[np.float32]:
    nbytes = GGML_QUANT_SIZES[kind][1]
    blocks = raw.reshape(-1, nbytes)
    return np.array([value for b in blocks for value in _DECODERS[kind](b.tobytes())], np.float32).reshape(
        shape
    )


@pytest.mark.parametrize("kind", _DECODERS, ids=lambda kind: kind.name)
def test_quantized_values_are_those_of_the_block_layout(
    gguf_recipe: Any, tmp_path: Path, kind: _Type
) -> None:
    recipe = gguf_recipe()
    shape = recipe.tensors[_NAME].shape
    recipe.tensors[_NAME] = _random_blocks(kind, *shape)
    recipe.types[_NAME] = kind
    expected = _decode(kind, recipe.tensors[_NAME], shape)
    found = GgufFile([recipe.write(tmp_path / "m.gguf")]).load(_HF_NAME)
    assert found.dtype == ml_dtypes.bfloat16
    # Half a unit is the rounding; the rest is float32 arithmetic in another order where terms cancel.
    assert np.allclose(found.astype(np.float32), expected, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize(
    "kind", [_Type.Q4_0, _Type.Q4_1, _Type.Q5_0, _Type.Q5_1, _Type.Q8_0], ids=lambda k: k.name
)
def test_a_quantized_model_is_near_the_original(gguf_recipe: Any, tmp_path: Path, kind: _Type) -> None:
    recipe = gguf_recipe(matrices=kind)
    source = GgufFile([recipe.write(tmp_path / "m.gguf")])
    error = source.load(_HF_NAME).astype(np.float32) - recipe.tensors[_NAME]
    assert np.sqrt((error**2).mean()) < {4: 0.12, 5: 0.06, 8: 0.01}[int(kind.name[1])]


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(_Type.F16, np.float16), (_Type.F32, np.float32), (_Type.BF16, ml_dtypes.bfloat16)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_model_of_one_float_type_keeps_it(
    gguf_recipe: Any, tmp_path: Path, kind: _Type, dtype: Any
) -> None:
    recipe = gguf_recipe(matrices=kind)
    source = GgufFile([recipe.write(tmp_path / "m.gguf")])
    assert source.config["dtype"] == np.dtype(dtype).name
    assert {source.load(name).dtype for name in source.tensor_shapes()} == {np.dtype(dtype)}
    stored = quantize(recipe.tensors[_NAME], kind).view(dtype)
    assert (source.load(_HF_NAME) == stored).all()


def test_a_mix_of_types_becomes_bfloat16(gguf_recipe: Any, tmp_path: Path) -> None:
    recipe = gguf_recipe(matrices=_Type.F16)
    recipe.types[_NAME] = _Type.F32
    source = GgufFile([recipe.write(tmp_path / "m.gguf")])
    assert source.config["dtype"] == "bfloat16"
    assert (source.load(_HF_NAME) == recipe.tensors[_NAME].astype(ml_dtypes.bfloat16)).all()


@pytest.mark.parametrize(
    "kind",
    [_Type.Q2_K, _Type.Q3_K, _Type.Q8_1, _Type.Q8_K, _Type.IQ4_NL, _Type.IQ2_XXS, _Type.MXFP4, _Type.TQ1_0],
    ids=lambda kind: kind.name,
)
def test_other_types_are_refused_by_tensor_and_type(gguf_recipe: Any, tmp_path: Path, kind: _Type) -> None:
    recipe = gguf_recipe()
    rows, columns = recipe.tensors[_NAME].shape
    block, nbytes = GGML_QUANT_SIZES[kind]
    recipe.tensors[_NAME] = np.zeros((rows, columns // block * nbytes), np.uint8)
    recipe.types[_NAME] = kind
    with pytest.raises(
        UnsupportedError, match=rf"tensor {_NAME} of .*; found type {kind.name}; expected one of Q4_0"
    ):
        GgufFile([recipe.write(tmp_path / "m.gguf")])


def test_a_norm_beyond_the_range_of_float16_is_refused(gguf_recipe: Any, tmp_path: Path) -> None:
    recipe = gguf_recipe(matrices=_Type.F16)
    recipe.tensors["output_norm.weight"][3] = 1e6
    source = GgufFile([recipe.write(tmp_path / "m.gguf")])
    with pytest.raises(ModelError, match=r"tensor output_norm\.weight of .* does not fit float16"):
        source.load("model.norm.weight")


def test_a_file_that_shrank_after_it_was_opened_is_refused(gguf_recipe: Any, tmp_path: Path) -> None:
    path = gguf_recipe().write(tmp_path / "m.gguf")
    source = GgufFile([path])
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(ModelError, match=r"cut short in tensor blk\.1\.ffn_down\.weight"):
        source.load("model.layers.1.mlp.down_proj.weight")


def test_rows_of_q_and_k_leave_the_interleaved_order_in_llama_alone(gguf_recipe: Any, tmp_path: Path) -> None:
    for arch in ("llama", "qwen3"):
        recipe = gguf_recipe(arch)
        # Row r of q holds its own number.
        recipe.tensors["blk.0.attn_q.weight"][:] = np.arange(256, dtype=np.float32)[:, None]
        source = GgufFile([recipe.write(tmp_path / f"{arch}.gguf")])
        rows = source.load("model.layers.0.self_attn.q_proj.weight")[:, 0].astype(int)
        within = (
            np.arange(64) if arch == "qwen3" else np.concatenate([np.arange(0, 64, 2), np.arange(1, 64, 2)])
        )
        assert rows.tolist() == [64 * head + row for head in range(4) for row in within]
