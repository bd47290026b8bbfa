"""Repair promotes no more units than it must: beside every combination, on the tiny model."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gristmill.calibration.blocks import load_block
from gristmill.pipeline.quantize.block import quantize_block, served_weights
from gristmill.pipeline.search.repair import fewest, first_guess, promoted
from gristmill.pipeline.search.stage import Sensitivity
from gristmill.pipeline.search.units import Unit, Width, with_widths
from gristmill.pipeline.validate.gates import GateResult
from gristmill.recipes import Gate
from tests.pipeline.search.conftest import OpenTiny, Tiny
from tests.pipeline.search.exact import distribution, divergence
from tests.pipeline.search.test_sensitivity import measure

RTN = "scheme: W4A16_ASYM, group_size: 32, method: rtn"
NARROW, WIDE = Width(3, 32), Width(4, 32)
LIMIT = 0.6
"""Of the KL of all units at the narrow width, so that a few promotions keep it."""


def served(tiny: Tiny, unit: Unit, width: Width) -> dict[str, torch.Tensor]:
    """The unit's weights, rounded to nearest."""
    layer = tiny.model.plan.layers[unit.layer]
    weights = load_block(tiny.model.source, layer, torch.float32)
    settings = tiny.settings
    schemes = {linear.name: settings.schemes[linear.name] for linear in unit.linears}
    result = quantize_block(
        layer, weights, None, replace(settings, schemes=with_widths(schemes, [unit], [width]))
    )
    rounded = served_weights(weights, result)
    return {linear.weight: rounded[linear.weight] for linear in unit.linears}


def test_no_combination_of_fewer_promotions_passes(tmp_path: Path, open_tiny: OpenTiny) -> None:
    tiny = open_tiny(RTN)
    sensitivity = measure(tiny, tmp_path / "cache")
    places = [sensitivity.widths.index(width) for width in (NARROW, WIDE)]
    two_widths = tuple(tuple(losses[place] for place in places) for losses in sensitivity.losses)
    sensitivity = replace(sensitivity, widths=(NARROW, WIDE), losses=two_widths)
    narrow, wide = ([served(tiny, unit, width) for unit in sensitivity.units] for width in (NARROW, WIDE))
    original = distribution(tiny, {})

    def kl(widened: tuple[int, ...]) -> float:
        changed: dict[str, torch.Tensor] = {}
        for place in range(len(sensitivity.units)):
            changed |= wide[place] if place in widened else narrow[place]
        return divergence(original, distribution(tiny, changed))

    limit = LIMIT * kl(())
    steps = promoted(sensitivity, [NARROW] * len(sensitivity.units))

    def passes(count: int) -> bool:
        return kl(tuple(place for place, width in enumerate(steps[count]) if width == WIDE)) < limit

    least = fewest(6, 1, passes)
    assert least is not None
    assert least > 1
    everyone = range(len(sensitivity.units))
    assert not any(kl(chosen) < limit for chosen in itertools.combinations(everyone, least - 1))


@pytest.mark.parametrize("most", range(1, 12))
def test_the_least_count_is_found_from_every_guess_without_asking_twice(most: int) -> None:
    for guess, least in itertools.product(range(1, most + 3), range(1, most + 2)):
        asked: list[int] = []

        def passes(count: int, asked: list[int] = asked, least: int = least) -> bool:
            asked.append(count)
            return count >= least

        assert fewest(most, guess, passes) == (least if least <= most else None)
        assert len(asked) == len(set(asked))


def made_up(*losses: tuple[float, ...]) -> Sensitivity:
    return Sensitivity(tuple(map(Width, (4, 5, 8))), (), losses)


def test_the_unit_that_spares_most_is_promoted_first_and_never_skips_a_width() -> None:
    steps = promoted(made_up((9, 2, 1), (5, 3, 0)), (Width(4), Width(4)))
    assert [tuple(width.bits for width in step) for step in steps] == [(4, 4), (5, 4), (5, 5), (5, 8), (8, 8)]


def test_a_guess_promotes_as_much_as_the_failed_gate_asks() -> None:
    sensitivity = made_up((9, 2, 1), (5, 3, 0))
    failed = GateResult(Gate("kl_mean", "<", 0.5), 1.0)
    assert first_guess(sensitivity, promoted(sensitivity, (Width(4), Width(4))), [failed]) == 1
    failed = GateResult(Gate("kl_mean", "<", 0.1), 1.0)
    assert first_guess(sensitivity, promoted(sensitivity, (Width(4), Width(4))), [failed]) == 4
