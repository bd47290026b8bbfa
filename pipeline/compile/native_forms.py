"""Checkpoint weights in the forms that the native kernels read.

Integer weights keep their exact values: 4 bits and fewer with scales that
float16 holds become int4, all others int8. What the layout can't say (groups
that are no multiple of 32, columns in activation order, FP8, FP4) is dequantized.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.errors import ModelError, UnsupportedError
from gristmill.runtime.kernels.layout import RowBlock, WeightForm, WeightKind, padded_columns
from gristmill.runtime.scheme import QuantizedTensor
from gristmill.runtime.sources.base import Tensor

__all__ = ["Part", "common_form", "linear_part", "quantized_part"]

_GROUP_STEP = 32
_INT8_MIDPOINT = 128


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One linear on its way into the layout.

    `form` is the cheapest that holds it, `floats` the one it takes beside parts
    that are not integers; `rows(form, first, last)` gives some rows in either,
    or in any form of `common_form`.
    """

    outputs: int
    form: WeightForm
    floats: WeightForm
    rows: Callable[[WeightForm, int, int], RowBlock]


def linear_part(name: str, weight: QuantizedTensor | Tensor, dtype: str) -> Part:
    """The part for a linear's weight [N, K]; `dtype` is the model's own.

    Raises UnsupportedError for a scheme that quantizes the layer's input, and
    ModelError for scales that are not finite.
    """
    outputs, features = weight.shape
    columns = padded_columns(features)
    if not isinstance(weight, QuantizedTensor):
        plain = weight
        form = WeightForm("bfloat16" if plain.dtype == ml_dtypes.bfloat16 else "float32", columns)
        return Part(outputs, form, form, lambda to, first, last: RowBlock(plain[first:last].astype(to.dtype)))
    if weight.scheme.activation is not None:
        raise UnsupportedError(
            f"native engine: {name} has scheme {weight.scheme.name}, which quantizes its input",
            expected="weight-only schemes",
        )
    if not np.isfinite(weight.scales).all():
        raise ModelError(f"scales of {name}", found="a value that is not finite", expected="finite scales")
    quantized = weight
    floats = WeightForm("bfloat16" if dtype == "bfloat16" else "float32", columns)
    form = _integer_form(quantized, columns) or floats
    return Part(outputs, form, floats, lambda to, first, last: _rows(quantized, to, first, last))


def quantized_part(name: str, weight: Tensor) -> Part:
    """A plain weight [N, K] as int8 with one scale a row, absmax / 127, computed as it is read.

    Raises ModelError, while reading, for values that are not finite.
    """
    columns = padded_columns(weight.shape[1])
    form = WeightForm("int8", columns, columns)

    def rows(to: WeightForm, first: int, last: int) -> RowBlock:
        return _absmax_rows(name, weight[first:last].astype(np.float32))

    return Part(weight.shape[0], form, form, rows)


def common_form(parts: Sequence[Part]) -> WeightForm:
    """The cheapest form that holds all parts, as linears that are stored as one need.

    Integer parts stay exact; beside a part that is dequantized all are.
    """
    forms = [part.form for part in parts]
    if all(form.is_integer for form in forms):
        kind: WeightKind = "int8" if any(form.kind == "int8" for form in forms) else "int4"
        group = math.gcd(*(form.group for form in forms))
        return WeightForm(kind, forms[0].columns, group, any(form.zero_points for form in forms))
    floats = [part.floats for part in parts]
    return next((form for form in floats if form.kind == "float32"), floats[0])


def _integer_form(weight: QuantizedTensor, columns: int) -> WeightForm | None:
    """The form that holds the codes themselves, None if the layout has no such form."""
    scheme, features = weight.scheme, weight.shape[1]
    group = columns if scheme.group_size in (-1, features) else scheme.group_size
    if scheme.type != "int" or group % _GROUP_STEP or not _groups_are_neighbours(weight):
        return None
    with np.errstate(over="ignore"):
        exact = np.array_equal(weight.scales.astype(np.float16).astype(np.float32), weight.scales)
    kind: WeightKind = "int4" if scheme.bits <= 4 and exact else "int8"
    return WeightForm(kind, columns, group, zero_points=weight.zero_points is not None)


def _groups_are_neighbours(weight: QuantizedTensor) -> bool:
    if weight.group_index is None:
        return True
    features = weight.shape[1]
    size = features if weight.scheme.group_size == -1 else weight.scheme.group_size
    return np.array_equal(weight.group_index, np.arange(features) // size)


def _rows(weight: QuantizedTensor, form: WeightForm, first: int, last: int) -> RowBlock:
    rows = slice(first, last)
    zeros = None if weight.zero_points is None else weight.zero_points[rows]
    part = replace(weight, codes=weight.codes[rows], scales=weight.scales[rows], zero_points=zeros)
    if not form.is_integer:
        return RowBlock(part.dequantize().astype(form.dtype))
    repeats = form.groups // part.scales.shape[1]
    scales: NDArray[np.float32] = np.repeat(part.scales, repeats, axis=1)
    if not form.zero_points:
        rebase = np.uint8(form.midpoint - weight.scheme.midpoint)
        return RowBlock(part.codes + rebase, scales)
    if zeros is None:
        zeros = np.full(part.scales.shape, weight.scheme.midpoint, np.uint8)
    return RowBlock(part.codes, scales, np.repeat(zeros, repeats, axis=1))


def _absmax_rows(name: str, weight: NDArray[np.float32]) -> RowBlock:
    most = np.abs(weight).max(axis=1, keepdims=True)
    if not np.isfinite(most).all():
        raise ModelError(f"tensor {name}", found="a value that is not finite", expected="finite weights")
    scales = most / np.float32(127)
    steps = np.divide(weight, scales, out=np.zeros_like(weight), where=scales > 0)
    codes = np.clip(np.rint(steps), -127, 127) + _INT8_MIDPOINT
    return RowBlock(codes.astype(np.uint8), scales)
