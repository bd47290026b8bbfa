"""Quantized tensors and sources that are simple enough to be seen to be right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gristmill.runtime.scheme import QuantizedTensor, QuantScheme
from gristmill.runtime.sources.hf_folder import HfFolder
from tests.tiny_checkpoints import quantize_source, round_to_nearest


def random_tensor(scheme: QuantScheme, rows: int, columns: int, seed: int = 0) -> QuantizedTensor:
    """A quantized random weight."""
    return round_to_nearest(np.random.default_rng(seed).standard_normal((rows, columns)), scheme)


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
