"""How large a checkpoint folder will be, before anything is quantized."""

from __future__ import annotations

import json
from collections.abc import Mapping

from gristmill.pipeline.model import BuildModel
from gristmill.pipeline.search.units import Unit, Width
from gristmill.runtime.formats.select import FORMATS, FormatName
from gristmill.runtime.model_plan import LinearPlan
from gristmill.runtime.safetensors_files import MODEL_DTYPES
from gristmill.runtime.scheme import QuantScheme

__all__ = ["fixed_bytes", "linear_bytes", "unit_bytes"]

_HEADER_BYTES = 160
"""What a tensor's entry in a safetensors header takes beside its name, at most."""

_CONFIG_BYTES = 8192
"""`quantization_config` beside the names in it, at most, and the rest of its punctuation."""

_CONFIG_NAME_BYTES = 16
"""Indentation, quotes and comma around a name in `config.json`."""


def unit_bytes(
    unit: Unit, schemes: Mapping[str, QuantScheme | None], width: Width, format: FormatName
) -> int:
    """Bytes of a unit's tensors at a width."""
    total = 0
    for linear in unit.linears:
        scheme = schemes[linear.name]
        assert scheme is not None  # a unit's linears are quantized
        total += linear_bytes(linear, width.of(scheme), format)
    return total


def linear_bytes(linear: LinearPlan, scheme: QuantScheme, format: FormatName) -> int:
    """Bytes of a quantized linear's tensors."""
    pieces = FORMATS[format].layout(linear.name, scheme, (linear.out_features, linear.in_features))
    return sum(spec.nbytes for spec in pieces.values())


def fixed_bytes(model: BuildModel, format: FormatName) -> int:
    """All else in the folder: plain tensors, headers, configuration, side files. An upper bound.

    Headers and `config.json` are estimated, within 200 bytes a tensor.
    """
    quantized = {
        linear.name: (linear.out_features, linear.in_features)
        for linear in model.plan.linears
        if model.schemes.get(linear.name) is not None
    }
    tied = {"lm_head.weight"} if model.plan.head is None else set()
    total = _CONFIG_BYTES + len(json.dumps(dict(model.source.config), indent=2))
    for name, shape in model.source.tensor_shapes().items():
        linear = name.removesuffix(".weight")
        if linear in quantized:
            scheme = model.schemes[linear]
            assert scheme is not None
            pieces = list(FORMATS[format].layout(linear, scheme, quantized[linear]))
            total += sum(len(piece) + _HEADER_BYTES for piece in pieces) + len(linear) + _CONFIG_NAME_BYTES
        elif name not in tied:
            count = 1
            for size in shape:
                count *= size
            total += count * MODEL_DTYPES[model.plan.dtype].itemsize + len(name) + _HEADER_BYTES
    return total + sum(map(len, model.source.side_files().values()))
