"""How compressed-tensors writes one scheme: the blocks `weights` and `input_activations` of a group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from gristmill.runtime.errors import UnsupportedError
from gristmill.runtime.formats.base import refuse_keys
from gristmill.runtime.scheme import ActivationScheme, QuantScheme, ScaleDtype

__all__ = ["WHERE", "activations_block", "expect", "format_name", "parse_scheme", "weights_block"]

WHERE = "quantization_config of compressed-tensors"

_KEYS = (
    "actorder",
    "block_structure",
    "dynamic",
    "group_size",
    "num_bits",
    "observer",
    "observer_kwargs",
    "scale_dtype",
    "strategy",
    "symmetric",
    "type",
    "zp_dtype",
)
_SCALE_DTYPES: Mapping[str | None, ScaleDtype] = {
    None: "bfloat16",
    "torch.bfloat16": "bfloat16",
    "torch.float16": "float16",
    "torch.float32": "float32",
}
_FLOAT4_SCALES: Mapping[int, tuple[str, ScaleDtype]] = {
    16: ("torch.float8_e4m3fn", "float8_e4m3fn"),
    32: ("torch.uint8", "float8_e8m0fnu"),
}
"""By group size: what compressed-tensors calls the type of scales, and what it means."""


def format_name(scheme: QuantScheme) -> str:
    """What compressed-tensors calls the format that a scheme is stored in."""
    if scheme.is_float4:
        return "nvfp4-pack-quantized" if scheme.has_global_scale else "mxfp4-pack-quantized"
    if scheme.activation is None:
        return "pack-quantized" if scheme.type == "int" else "naive-quantized"
    return f"{scheme.type}-quantized"


def weights_block(scheme: QuantScheme) -> dict[str, Any]:
    """The block `weights`."""
    size = scheme.group_size
    block = scheme.group_rows > 1
    strategy = "channel" if size == -1 else "block" if block else "group"
    float4: dict[str, str] = {}
    if scheme.is_float4:
        stored, _ = _FLOAT4_SCALES[size]
        float4 = {"scale_dtype": stored, "zp_dtype": stored}
    return {
        "num_bits": scheme.bits,
        "type": scheme.type,
        "symmetric": scheme.symmetric,
        "strategy": "tensor_group" if scheme.has_global_scale else strategy,
        "group_size": None if size == -1 or block else size,
        **({"block_structure": [size, size]} if block else {}),
        "dynamic": False,
        "actorder": None,
        **float4,
    }


def activations_block(scheme: QuantScheme) -> dict[str, Any] | None:
    """The block `input_activations`; None for weight-only schemes."""
    activation = scheme.activation
    if activation is None:
        return None
    return {
        "num_bits": activation.bits,
        "type": activation.type,
        "symmetric": activation.symmetric,
        "strategy": activation.granularity,
        "group_size": scheme.group_size if activation.granularity == "group" else None,
        "dynamic": activation.dynamic,
    }


def parse_scheme(name: str, weights: Any, activations: Any) -> QuantScheme:
    """The scheme that the blocks of group `name` say. Raises UnsupportedError naming whatever is not read."""
    if not isinstance(weights, Mapping):
        raise UnsupportedError(f"{WHERE}: {name}.weights", found=repr(weights), expected="a scheme")
    where = f"{name}.weights"
    refuse_keys(f"{WHERE}, {where}", weights, _KEYS)
    expect(f"{where}.type", weights.get("type", "int"), "int", "float")
    is_float = weights.get("type") == "float"
    expect(f"{where}.num_bits", weights.get("num_bits", 8), *((4, 8) if is_float else range(2, 9)))
    expect(f"{where}.dynamic", weights.get("dynamic", False), False)
    expect(f"{where}.symmetric", weights.get("symmetric", True), True, *(() if is_float else (False,)))
    # Activation order by static groups leaves no trace in the file; "group" would need a group index.
    expect(f"{where}.actorder", weights.get("actorder"), None, False, "weight", "static")
    if is_float and weights.get("num_bits") == 4:
        return _parse_float4(where, weights, activations)
    expect(f"{where}.scale_dtype", weights.get("scale_dtype"), *_SCALE_DTYPES)
    size = _block_size(where, weights) if is_float else _group_size(where, weights)
    return QuantScheme(
        bits=weights.get("num_bits", 8),
        group_size=size,
        symmetric=weights.get("symmetric", True),
        type=weights.get("type", "int"),
        scale_dtype=_SCALE_DTYPES[weights.get("scale_dtype")],
        activation=None if activations is None else _parse_activations(name, activations, size),
    )


def _parse_float4(where: str, weights: Mapping[str, Any], activations: Any) -> QuantScheme:
    size = weights.get("group_size")
    expect(f"{where}.group_size", size, *_FLOAT4_SCALES)
    stored, meant = _FLOAT4_SCALES[cast(int, size)]
    scheme = QuantScheme(4, cast(int, size), True, "float", scale_dtype=meant)
    expect(
        f"{where}.strategy", weights.get("strategy"), "tensor_group" if scheme.has_global_scale else "group"
    )
    expect(f"{where}.scale_dtype", weights.get("scale_dtype"), None, stored)
    expect(f"{where}.block_structure", weights.get("block_structure"), None)
    expect("input_activations beside float4 weights", activations, None)
    return scheme


def expect(where: str, found: Any, *allowed: Any) -> None:
    """Raise UnsupportedError unless `found` is one of `allowed`, in value and type."""
    # bool is an int in Python, so that 1 == True: compare types too.
    if not any(found == value and type(found) is type(value) for value in allowed):
        raise UnsupportedError(
            f"{WHERE}: {where}",
            found=repr(found),
            expected=" or ".join(map(repr, allowed)) + " in this version",
        )


def _group_size(where: str, weights: Mapping[str, Any]) -> int:
    size = weights.get("group_size")
    implied = "tensor" if size is None else "channel" if size == -1 else "group"
    strategy = weights.get("strategy") or implied
    expect(f"{where}.block_structure", weights.get("block_structure"), None)
    expect(f"{where}.strategy", strategy, "group", "channel")
    if strategy == "channel":
        expect(f"{where}.group_size", size, None, -1)
        return -1
    if type(size) is not int or size < 1:
        raise UnsupportedError(f"{WHERE}: {where}.group_size", found=repr(size), expected="a positive number")
    return size


def _block_size(where: str, weights: Mapping[str, Any]) -> int:
    """The side of a float weight's square blocks; -1 for one scale a row."""
    block = weights.get("block_structure")
    strategy = weights.get("strategy") or ("tensor" if block is None else "block")
    expect(f"{where}.strategy", strategy, "channel", "block")
    expect(f"{where}.group_size", weights.get("group_size"), None, *((-1,) if strategy == "channel" else ()))
    if strategy == "channel":
        expect(f"{where}.block_structure", block, None)
        return -1
    if not isinstance(block, list) or len(block) != 2 or block[0] != block[1] or type(block[0]) is not int:
        raise UnsupportedError(
            f"{WHERE}: {where}.block_structure", found=repr(block), expected="a square, such as [128, 128]"
        )
    if block[0] < 1:
        raise UnsupportedError(f"{WHERE}: {where}.block_structure", found=block, expected="positive sizes")
    return int(block[0])


def _parse_activations(name: str, activations: Any, size: int) -> ActivationScheme:
    where = f"{name}.input_activations"
    if not isinstance(activations, Mapping):
        raise UnsupportedError(f"{WHERE}: {where}", found=repr(activations), expected="a scheme or null")
    refuse_keys(f"{WHERE}, {where}", activations, _KEYS)
    expect(f"{where}.num_bits", activations.get("num_bits", 8), 8)
    expect(f"{where}.type", activations.get("type", "int"), "int", "float")
    expect(f"{where}.symmetric", activations.get("symmetric", True), True)
    strategy = activations.get("strategy")
    expect(f"{where}.strategy", strategy, "token", "tensor", "group")
    expect(f"{where}.dynamic", activations.get("dynamic", False), strategy != "tensor")
    expect(f"{where}.group_size", activations.get("group_size"), size if strategy == "group" else None)
    for key in ("actorder", "block_structure", "scale_dtype"):
        expect(f"{where}.{key}", activations.get(key), None)
    granularity = cast(Literal["token", "tensor", "group"], strategy)
    return ActivationScheme(activations.get("type", "int"), 8, granularity, strategy != "tensor")
