"""Quantized tensors and sources that are simple enough to be seen to be right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from gristmill.runtime.architectures import plan_model
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme
from gristmill.runtime.sources.hf_folder import HfFolder

_DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}


def round_to_nearest(weight: NDArray[Any], scheme: QuantScheme) -> QuantizedTensor:
    """The plainest quantizer: the range of each group, cut into equal steps."""
    weight = weight.astype(np.float32)
    rows, columns = weight.shape
    groups = weight.reshape(rows, scheme.num_groups(columns), -1)
    if scheme.symmetric:
        steps = np.abs(groups).max(axis=2) / (scheme.max_code / 2)
    else:
        steps = (groups.max(axis=2).clip(0) - groups.min(axis=2).clip(None, 0)) / scheme.max_code
    scales = np.maximum(steps, 1e-4).astype(_DTYPES[scheme.scale_dtype]).astype(np.float32)
    if scheme.symmetric:
        zeros = np.full(scales.shape, scheme.midpoint)
    else:
        zeros = np.clip(np.round(-groups.min(axis=2) / scales), 0, scheme.max_code)
    codes = np.clip(np.round(groups / scales[..., None]) + zeros[..., None], 0, scheme.max_code)
    return QuantizedTensor(
        scheme,
        codes.reshape(rows, columns).astype(np.uint8),
        scales,
        None if scheme.symmetric else zeros.astype(np.uint8),
    )


def random_tensor(scheme: QuantScheme, rows: int, columns: int, seed: int = 0) -> QuantizedTensor:
    """A quantized random weight."""
    return round_to_nearest(np.random.default_rng(seed).standard_normal((rows, columns)), scheme)


def quantize_source(
    source: HfFolder, scheme_of: Callable[[str], QuantScheme | None]
) -> dict[str, QuantizedTensor]:
    """Every linear of the model by `scheme_of(name)`, None to skip it."""
    quantized = {}
    for linear in plan_model(source.config).linears:
        scheme = scheme_of(linear.name)
        if scheme is not None:
            quantized[linear.name] = round_to_nearest(source.load(linear.weight), scheme)
    return quantized


@pytest.fixture
def quantize_model() -> Callable[..., dict[str, QuantizedTensor]]:
    """`quantize_source`."""
    return quantize_source


@pytest.fixture
def random_quantized() -> Callable[..., QuantizedTensor]:
    """`random_tensor`."""
    return random_tensor


@pytest.fixture
def tiny_source(tiny_llama: Path) -> HfFolder:
    """The tiny model with tied embeddings."""
    return HfFolder(tiny_llama)


@pytest.fixture
def tiny_untied_source(tiny_llama_untied: Path) -> HfFolder:
    """The tiny model with a head of its own."""
    return HfFolder(tiny_llama_untied)
