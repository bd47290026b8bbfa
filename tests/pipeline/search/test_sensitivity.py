"""Estimated losses beside the exact ones: the whole model run again with one unit changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gristmill.calibration.blocks import load_block
from gristmill.calibration.walk import BlockWalk
from gristmill.pipeline.environment import determinism_contract
from gristmill.pipeline.progress import SilentProgress
from gristmill.pipeline.quantize.block import quantize_block, served_weights
from gristmill.pipeline.search.stage import Sensitivity, measure_sensitivity, split_sequences
from gristmill.pipeline.search.units import Width, with_widths
from gristmill.pipeline.stages import StageCache
from gristmill.runtime.errors import PromptError
from tests.pipeline.search.conftest import OpenTiny, Tiny
from tests.pipeline.search.exact import distribution, divergence

GPTQ = "scheme: W4A16_ASYM, group_size: 32, method: gptq"
WIDTHS = tuple(Width(bits, size) for bits in (3, 4, 6) for size in (64, 32))


class Interrupted(Exception):
    """What the stage is stopped with."""


class StopAfter(SilentProgress):
    """Interrupts after some layers; counts those that were measured."""

    def __init__(self, layers: int = 100) -> None:
        self.measured = 0
        self._layers = layers

    def advance(self, steps: int = 1) -> None:
        self.measured += steps
        if self.measured == self._layers:
            raise Interrupted


def measure(tiny: Tiny, cache: Path, progress: SilentProgress | None = None) -> Sensitivity:
    stages, progress = StageCache(cache), progress or SilentProgress()
    contract = determinism_contract(1)
    return measure_sensitivity(
        tiny.model, "tiny", tiny.samples, tiny.settings, WIDTHS, contract, stages, progress
    )


def exact_losses(tiny: Tiny, sensitivity: Sensitivity) -> NDArray[np.float64]:
    """KL [units, widths] with each unit alone quantized."""
    plan, source = tiny.model.plan, tiny.model.source
    walk = BlockWalk(plan, source, split_sequences(tiny.samples.sequences)[1], follow_original=False)
    original = distribution(tiny, {})
    losses = []
    for layer in plan.layers:
        weights = load_block(source, layer, walk.dtype)
        for unit in (unit for unit in sensitivity.units if unit.layer == layer.index):
            schemes = {linear.name: tiny.settings.schemes[linear.name] for linear in unit.linears}
            row = []
            for width in WIDTHS:
                alone = replace(tiny.settings, schemes=with_widths(schemes, [unit], [width]))
                result = quantize_block(layer, weights, walk.enter(layer, weights), alone)
                served = {name: tensor.float() for name, tensor in served_weights(weights, result).items()}
                row.append(divergence(original, distribution(tiny, served)))
            losses.append(row)
        walk.advance(layer, weights)
    return np.array(losses)


def rank_correlation(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Spearman's."""
    one, two = (np.argsort(np.argsort(values.ravel())).astype(np.float64) for values in (first, second))
    return float(np.corrcoef(one, two)[0, 1])


@pytest.mark.parametrize("method", ["gptq", "gptq, scale: awq", "awq", "rtn", "hqq"])
def test_estimates_rank_units_and_widths_as_the_exact_losses_do(
    method: str, tmp_path: Path, open_tiny: OpenTiny
) -> None:
    tiny = open_tiny(f"scheme: W4A16_ASYM, group_size: 32, method: {method}")
    sensitivity = measure(tiny, tmp_path / "cache")
    estimated, exact = np.array(sensitivity.losses), exact_losses(tiny, sensitivity)
    assert rank_correlation(estimated, exact) > 0.97
    assert rank_correlation(estimated[:, 0], exact[:, 0]) > 0.9


def test_an_interrupted_search_continues_to_the_same_losses(tmp_path: Path, open_tiny: OpenTiny) -> None:
    tiny = open_tiny(GPTQ)
    with pytest.raises(Interrupted):
        measure(tiny, tmp_path / "stopped", StopAfter(2))
    rest = StopAfter()
    assert measure(tiny, tmp_path / "stopped", rest).losses == measure(tiny, tmp_path / "whole").losses
    assert rest.measured == 1


def test_q_k_and_v_are_one_unit_and_gate_and_up_another(tmp_path: Path, open_tiny: OpenTiny) -> None:
    tiny = open_tiny(f'{GPTQ}, skip: [lm_head, "*.up_proj"]')
    names = [
        [linear.name.rpartition(".")[2] for linear in unit.linears]
        for unit in measure(tiny, tmp_path / "cache").units[:4]
    ]
    assert names == [["q_proj", "k_proj", "v_proj"], ["o_proj"], ["gate_proj"], ["down_proj"]]


def test_losses_are_measured_on_sequences_that_statistics_do_not_see() -> None:
    sequences = [(number, *range(255)) for number in range(1000, 1020)]
    measured, others = split_sequences(sequences)
    assert len(measured) == 4
    assert not set(map(tuple, measured)) & set(map(tuple, others))


def test_a_single_sequence_is_refused() -> None:
    with pytest.raises(PromptError, match="found 1 sequence; expected two at least"):
        split_sequences([(1, 2, 3)])
