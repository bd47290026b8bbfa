"""The peaks of keys and values are those of what transformers has in its cache, for real tokens only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from gristmill.calibration.blocks import load_block
from gristmill.calibration.kv_peaks import KVPeaks, kv_peaks
from gristmill.pipeline.kv_calibration import kv_scales_of
from gristmill.runtime.architectures import plan_model
from gristmill.runtime.executors.reference.kv_twin import hadamard
from gristmill.runtime.executors.reference.linears import Weights
from gristmill.runtime.model_plan import LayerPlan
from gristmill.runtime.sources.hf_folder import HfFolder

SEQUENCES = ([5, 900, 17, 40], [8, 3, 77, 21, 9, 1000, 4], [6])
PEAKS = KVPeaks((448.0, 448.0 * 0.3), (0.0, 1.0))


def test_they_are_those_of_the_cache_of_transformers_as_it_is_and_rotated(tiny_llama: Path) -> None:
    source = HfFolder(tiny_llama)

    def served(layer: LayerPlan, dtype: torch.dtype) -> Weights:
        return load_block(source, layer, dtype)

    found = list(kv_peaks(plan_model(source.config), source, SEQUENCES, served, compute="float32"))
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    with torch.no_grad():
        caches = [model(torch.tensor([tokens]), use_cache=True).past_key_values for tokens in SEQUENCES]
    for index, peaks in enumerate(found):
        keys = [cache.layers[index].keys for cache in caches]
        values = [cache.layers[index].values for cache in caches]
        np.testing.assert_allclose(peaks.keys, most([*keys, *map(hadamard, keys)]), rtol=1e-4)
        np.testing.assert_allclose(peaks.values, most(values), rtol=1e-4)


def most(cached: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([x.abs().amax(dim=(0, 2, 3)) for x in cached]).amax(dim=0)


@pytest.mark.parametrize(("share", "keys"), [("tensor", (1.0,)), ("head", (1.0, 0.30078125))])
def test_a_scale_is_the_least_stored_number_that_holds_its_peak(share: str, keys: tuple[float, ...]) -> None:
    (layer,) = kv_scales_of([PEAKS], "tensor" if share == "tensor" else "head", "bfloat16")
    assert layer.keys == keys


def test_a_head_without_any_value_has_a_scale_of_one() -> None:
    (layer,) = kv_scales_of([PEAKS], "head", "bfloat16")
    assert layer.values[0] == 1.0
