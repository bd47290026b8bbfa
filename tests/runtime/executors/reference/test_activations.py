"""Inputs are quantized as a slow twin and compressed-tensors itself do it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from compressed_tensors.quantization.lifecycle.forward import fake_quantize as library_fake_quantize
from compressed_tensors.quantization.quant_args import QuantizationArgs
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gristmill.runtime.executors.reference.activations import fake_quantize
from gristmill.runtime.formats.compressed_tensors_args import activations_block
from gristmill.runtime.scheme import ActivationScheme, QuantScheme

INT_TOKEN = QuantScheme(8, -1, True, activation=ActivationScheme("int", 8, "token", dynamic=True))
INT_TENSOR = QuantScheme(8, -1, True, activation=ActivationScheme("int", 8, "tensor", dynamic=False))
FLOAT_TOKEN = QuantScheme(
    8, -1, True, "float", activation=ActivationScheme("float", 8, "token", dynamic=True)
)
FLOAT_TENSOR = QuantScheme(
    8, -1, True, "float", activation=ActivationScheme("float", 8, "tensor", dynamic=False)
)
FLOAT_GROUP = QuantScheme(
    8, 16, True, "float", activation=ActivationScheme("float", 8, "group", dynamic=True)
)
SCHEMES = [INT_TOKEN, INT_TENSOR, FLOAT_TOKEN, FLOAT_TENSOR, FLOAT_GROUP]
SCALE = torch.tensor([0.03125])

every_scheme = pytest.mark.parametrize(
    "scheme", SCHEMES, ids=lambda scheme: f"{scheme.name}_{scheme.activation.granularity}"
)
rows = arrays(
    np.float32, (3, 32), elements=st.floats(-1e4, 1e4, width=32) | st.sampled_from([0.0, 1e-30, -1e-42])
)


def stored(scheme: QuantScheme) -> torch.Tensor | None:
    return SCALE if scheme.is_static else None


def nearest_float8(value: float) -> float:
    """The nearest E4M3 number by its definition: 3 bits behind the leading one, exponents from -6."""
    if value == 0:
        return value
    exponent = max(math.floor(math.log2(abs(value))), -6)
    step = 2.0 ** (exponent - 3)
    return float(max(-448.0, min(448.0, round(value / step) * step)))


def twin(x: np.ndarray[Any, Any], scheme: QuantScheme) -> np.ndarray[Any, Any]:
    """Value by value."""
    assert scheme.activation is not None
    half = 127.5 if scheme.activation.type == "int" else 448.0
    size = scheme.group_size if scheme.activation.granularity == "group" else x.shape[1]
    result = np.zeros_like(x)
    for row in range(x.shape[0]):
        for start in range(0, x.shape[1], size):
            values = x[row, start : start + size]
            scale = np.float32(np.abs(values).max()) / np.float32(half)
            scale = np.float32(SCALE.item()) if scheme.is_static else scale or np.float32(1)
            for column, value in enumerate(values, start):
                code = float(value / scale)
                if scheme.activation.type == "int":
                    code = max(-128, min(127, round(code)))
                else:
                    code = nearest_float8(max(-448.0, min(448.0, code)))
                result[row, column] = np.float32(code) * scale
    return result


@every_scheme
@given(x=rows)
def test_values_are_those_of_the_twin(scheme: QuantScheme, x: np.ndarray[Any, Any]) -> None:
    found = fake_quantize(torch.from_numpy(x.copy()), scheme, stored(scheme)).numpy()
    np.testing.assert_array_equal(found, twin(x, scheme))


@every_scheme
def test_values_are_those_of_compressed_tensors(scheme: QuantScheme) -> None:
    x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0)) * 9
    x[1, 2] = 0
    args = QuantizationArgs.model_validate(activations_block(scheme))
    scale: Any = SCALE
    zeros: Any = torch.zeros(1)
    if not scheme.is_static:
        scale, zeros = compute_dynamic_scales_and_zp(x, args, torch.nn.Module())
    expected = library_fake_quantize(x, scale, zeros, args)
    assert torch.equal(fake_quantize(x, scheme, stored(scheme)), expected)


@every_scheme
def test_zeros_stay_zeros_and_nan_is_not_hidden(scheme: QuantScheme) -> None:
    x = torch.zeros(2, 32)
    assert torch.equal(fake_quantize(x, scheme, stored(scheme)), x)
    x[0, 3] = math.nan
    assert fake_quantize(x, scheme, stored(scheme))[0, 3].isnan()


@pytest.mark.parametrize(("scheme", "most"), [(INT_TENSOR, 127), (FLOAT_TENSOR, 448)])
def test_values_beyond_a_static_range_are_clamped(scheme: QuantScheme, most: int) -> None:
    found = fake_quantize(torch.full((1, 32), 1e6), scheme, SCALE)
    assert torch.equal(found, torch.full((1, 32), most * SCALE.item()))


@every_scheme
def test_the_input_is_not_altered_and_its_type_is_kept(scheme: QuantScheme) -> None:
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(1))
    before = x.clone()
    fake_quantize(x, scheme, stored(scheme))
    assert torch.equal(x, before)
    assert fake_quantize(x.bfloat16(), scheme, stored(scheme)).dtype is torch.bfloat16


@pytest.mark.parametrize("scheme", [INT_TOKEN, FLOAT_TOKEN, FLOAT_GROUP])
def test_a_token_does_not_depend_on_its_neighbours(scheme: QuantScheme) -> None:
    x = torch.randn(6, 32, generator=torch.Generator().manual_seed(2))
    alone = torch.cat([fake_quantize(row[None], scheme, None) for row in x])
    assert torch.equal(fake_quantize(x, scheme, None), alone)
