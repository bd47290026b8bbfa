"""Every scheme that a recipe can name, through every method, on a block of a model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gristmill.calibration.blocks import load_block
from gristmill.calibration.drift import GroupStatistics
from gristmill.calibration.pairs import BlockPair
from gristmill.calibration.statistics import InputStatistics
from gristmill.calibration.walk import BlockWalk
from gristmill.pipeline.quantize.block import QuantizeSettings, quantize_block
from gristmill.pipeline.quantize.signround import SignRoundSettings
from gristmill.recipes.quantize import Method
from gristmill.runtime.architectures import plan_model
from gristmill.runtime.model_plan import LayerPlan
from gristmill.runtime.scheme import QuantScheme
from gristmill.runtime.sources.open import open_source

SEQUENCES = [[(11 * row + 5 * column) % 700 for column in range(48)] for row in range(16)]
Block = tuple[LayerPlan, dict[str, torch.Tensor], BlockWalk]


@pytest.fixture
def block(tiny_llama: Path) -> Block:
    source = open_source(str(tiny_llama), tiny_llama.parent)
    plan = plan_model(source.config)
    walk = BlockWalk(plan, source, SEQUENCES)
    return plan.layers[0], load_block(source, plan.layers[0], walk.dtype), walk


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("group_size", [-1, 16, 64])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("method", ["rtn", "gptq", "awq", "signround"])
def test_every_width_group_and_symmetry_works(
    block: Block, method: Method, symmetric: bool, group_size: int, bits: int
) -> None:
    layer, weights, walk = block
    scheme = QuantScheme(bits, group_size, symmetric)
    schemes = {linear.name: scheme for linear in layer.linears}
    settings = QuantizeSettings(method, schemes, signround=SignRoundSettings(iterations=4))
    result = quantize_block(layer, weights, walk.enter(layer, weights), settings)
    for linear in layer.linears:
        tensor = result.quantized[linear.name]
        scales = torch.from_numpy(tensor.scales)
        assert tensor.shape == (linear.out_features, linear.in_features)
        assert tensor.codes.max() <= scheme.max_code
        assert torch.equal(scales.bfloat16().float(), scales)
        assert 0 <= result.errors[linear.name] < {2: 1.0, 3: 0.3, 4: 0.06, 8: 0.0005}[bits]


class AllButNoInput:
    """Statistics of inputs so small that rounding has turned their squares negative."""

    def overview(self, weights: object) -> dict[tuple[str, ...], InputStatistics]:
        return {}

    def group(self, index: int, weights: object) -> GroupStatistics:
        size = 128 if index == 3 else 64
        return GroupStatistics(
            InputStatistics(9, -1e-12 * torch.eye(size), torch.zeros(size), torch.zeros(size))
        )

    def pairs(self) -> tuple[BlockPair, ...]:
        return ()


def test_an_error_that_rounding_turns_negative_counts_as_none(block: Block) -> None:
    layer, weights, _ = block
    settings = QuantizeSettings("rtn", {linear.name: QuantScheme(8, 16, False) for linear in layer.linears})
    errors = quantize_block(layer, weights, AllButNoInput(), settings).errors
    assert set(errors.values()) == {0.0}
