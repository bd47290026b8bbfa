"""Loading weights: dequantization against numpy, ties, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gristmill.runtime.errors import ModelError, UnsupportedError
from gristmill.runtime.executors.reference.weights import StreamedWeights, dequantize, load_weights
from gristmill.runtime.scheme import ActivationScheme, QuantizedTensor, QuantScheme

Shape = tuple[int, int]


def random_quantized(scheme: QuantScheme, shape: Shape, *, act_order: bool = False) -> QuantizedTensor:
    rng = np.random.default_rng(0)
    groups = (shape[0], scheme.num_groups(shape[1]))
    index = rng.permutation(np.arange(shape[1]) % groups[1]).astype(np.int32) if act_order else None
    return QuantizedTensor(
        scheme,
        codes=rng.integers(0, scheme.max_code + 1, shape, dtype=np.uint8),
        scales=rng.uniform(0.01, 1.0, groups).astype(np.float16).astype(np.float32),
        zero_points=None
        if scheme.symmetric
        else rng.integers(0, scheme.max_code + 1, groups, dtype=np.uint8),
        group_index=index,
        input_scale=0.5 if scheme.is_static else None,
    )


@pytest.mark.parametrize("shape", [(3, 64), (1500, 32)], ids=["few rows", "more rows than at once"])
@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize(
    "scheme",
    [
        QuantScheme(4, 16, symmetric=True),
        QuantScheme(3, 32, symmetric=False),
        QuantScheme(8, -1, symmetric=False),
    ],
    ids=lambda scheme: scheme.name,
)
def test_dequantize_is_the_numpy_definition(scheme: QuantScheme, act_order: bool, shape: Shape) -> None:
    quantized = random_quantized(scheme, shape, act_order=act_order)
    assert np.array_equal(dequantize(quantized, torch.float32).numpy(), quantized.dequantize())


def test_dequantize_rounds_once_to_the_compute_type() -> None:
    quantized = random_quantized(QuantScheme(4, 16, symmetric=False), (8, 64))
    rounded = torch.from_numpy(quantized.dequantize()).bfloat16()
    assert torch.equal(dequantize(quantized, torch.bfloat16), rounded)


def test_a_tied_head_takes_no_memory_of_its_own(tiny_model: Callable[[str], Any]) -> None:
    weights = load_weights(tiny_model("llama tied").weights, torch.float32)
    assert "lm_head.weight" not in weights


def test_every_tensor_of_the_plan_is_loaded_once(family: str, tiny_model: Callable[[str], Any]) -> None:
    source = tiny_model(family).weights
    assert sorted(load_weights(source, torch.bfloat16)) == sorted(source.plan.tensor_shapes())


def test_streamed_weights_are_those_that_are_held(family: str, tiny_model: Callable[[str], Any]) -> None:
    source = tiny_model(family).weights
    held, streamed = load_weights(source, torch.bfloat16), StreamedWeights(source, torch.bfloat16)
    assert set(streamed) == set(held)
    assert all(torch.equal(streamed[name], tensor) for name, tensor in held.items())


@pytest.mark.parametrize("static", [False, True])
def test_streamed_weights_are_dequantized_as_held_ones(
    tiny_model: Callable[[str], Any], static: bool
) -> None:
    activation = ActivationScheme("int", 8, "tensor" if static else "token", dynamic=not static)
    source = quantized_up(tiny_model, QuantScheme(8, -1, symmetric=True, activation=activation))
    held, streamed = load_weights(source, torch.float32), StreamedWeights(source, torch.float32)
    assert len(streamed) == len(held)
    assert all(torch.equal(streamed[name], tensor) for name, tensor in held.items())


def quantized_up(tiny_model: Callable[[str], Any], scheme: QuantScheme) -> Any:
    """The tiny model with one linear in `scheme`."""
    source = tiny_model("llama tied").weights
    linear = source.plan.layers[1].mlp.up
    tensor = random_quantized(scheme, (linear.out_features, linear.in_features))
    return replace(source, quantized={linear.name: tensor})


@pytest.mark.parametrize(
    "activation",
    [
        ActivationScheme("int", 4, "token", dynamic=True),
        ActivationScheme("int", 8, "token", dynamic=True, symmetric=False),
    ],
)
def test_inputs_that_are_not_8_bits_and_symmetric_are_refused_by_name(
    tiny_model: Callable[[str], Any], activation: ActivationScheme
) -> None:
    scheme = QuantScheme(8, -1, symmetric=True, activation=activation)
    with pytest.raises(UnsupportedError, match=rf"layers\.1\.mlp\.up_proj has scheme {scheme.name}"):
        load_weights(quantized_up(tiny_model, scheme), torch.float32)


def test_a_head_with_quantized_inputs_is_refused_by_name(tiny_model: Callable[[str], Any]) -> None:
    source = tiny_model("llama untied").weights
    scheme = QuantScheme(8, -1, True, activation=ActivationScheme("int", 8, "token", dynamic=True))
    head = random_quantized(scheme, source.tensors["lm_head.weight"].shape)
    with pytest.raises(UnsupportedError, match="lm_head has scheme W8A8_CHANNEL; expected an output head"):
        load_weights(replace(source, quantized={"lm_head": head}), torch.float32)


def test_float8_weights_are_the_numpy_definition() -> None:
    codes = np.arange(256, dtype=np.uint8).reshape(2, 128)
    finite = np.where((codes & 0x7F) == 0x7F, 0, codes).astype(np.uint8)
    scheme = QuantScheme(8, -1, symmetric=True, type="float")
    quantized = QuantizedTensor(scheme, finite, np.array([[0.5], [3.0]], np.float32))
    expected = quantized.dequantize()
    assert np.array_equal(dequantize(quantized, torch.float32).numpy(), expected)
    assert expected.max() == 448 * 0.5
    assert expected.min() == -448 * 3.0
    assert expected[0, 1] == 2**-9 * 0.5  # the smallest subnormal


def test_a_tensor_of_another_shape_is_refused_by_name(tiny_model: Callable[[str], Any]) -> None:
    source = tiny_model("llama tied").weights
    tensors = {**source.tensors, "model.norm.weight": np.ones(47, dtype=np.float32)}
    with pytest.raises(ModelError, match=r"model\.norm\.weight: shape; found \(47,\); expected \(48,\)"):
        load_weights(replace(source, tensors=tensors), torch.float32)
