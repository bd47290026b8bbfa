"""Which format a `quantization_config` is in: read, or refused by its own name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from gristmill.runtime.errors import UnsupportedError
from gristmill.runtime.formats import awq, compressed_tensors
from gristmill.runtime.formats.base import WeightFormat

__all__ = ["FORMATS", "FormatName", "format_of"]

FormatName = Literal["compressed-tensors", "awq"]

FORMATS: Mapping[str, WeightFormat] = MappingProxyType({"compressed-tensors": compressed_tensors, "awq": awq})
"""The formats that are written and read, by `quant_method`."""


def format_of(config: Mapping[str, Any]) -> WeightFormat:
    """The format of a `quantization_config` block. Raises UnsupportedError naming any other."""
    method = config.get("quant_method", _unnamed_method(config))
    if isinstance(method, str) and method in FORMATS:
        return FORMATS[method]
    raise UnsupportedError(
        "quantized checkpoint", found=_describe(method, config), expected=" or ".join(FORMATS)
    )


def _unnamed_method(config: Mapping[str, Any]) -> str | None:
    """The method of a block that does not name it, by the keys that its writer alone uses."""
    if "w_bit" in config and "q_group_size" in config:
        return "awq"
    if "load_in_4bit" in config or "load_in_8bit" in config:
        return "bitsandbytes"
    producer = config.get("producer")
    if isinstance(producer, Mapping) and isinstance(producer.get("name"), str):
        return str(producer["name"])
    return "gptq" if "desc_act" in config else None


def _describe(method: Any, config: Mapping[str, Any]) -> str:
    if method is None:
        return f"no quant_method among {', '.join(sorted(map(str, config)))}"
    nested = config.get("quantization")
    algorithm = (nested if isinstance(nested, Mapping) else config).get("quant_algo")
    return f"quant_method {method}" + (f" ({algorithm})" if algorithm else "")
