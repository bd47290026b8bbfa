"""Widths under a budget: kept, or refused with the nearest that can be kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.pipeline.model import BuildModel
from gristmill.pipeline.search.budget import choose_widths, require_possible
from gristmill.pipeline.search.stage import Sensitivity
from gristmill.pipeline.search.units import Width, model_units, with_widths
from gristmill.pipeline.search.widths import candidates
from gristmill.recipes.search import SearchBudget, SearchSettings
from gristmill.runtime.errors import RecipeError
from gristmill.runtime.formats.write import write_checkpoint
from gristmill.runtime.sources.hf_folder import HfFolder
from tests.pipeline.search.conftest import OpenTiny
from tests.tiny_checkpoints import quantize_source

WIDTHS = tuple(map(Width, (3, 4, 5, 6, 8)))
RTN = "scheme: W4A16_ASYM, group_size: 32, method: rtn"


def falling_losses(model: BuildModel) -> Sensitivity:
    """Made up: later units lose more, each bit saves three quarters."""
    units = model_units(model.plan, model.schemes)
    losses = tuple(
        tuple((place + 1) * 4.0 ** (3 - width.bits) for width in WIDTHS) for place in range(len(units))
    )
    return Sensitivity(WIDTHS, units, losses)


def bits_per_weight(model: BuildModel, widths: tuple[Width, ...]) -> float:
    stored = weights = 0.0
    schemes = with_widths(model.schemes, model_units(model.plan, model.schemes), widths)
    for linear in model.plan.linears:
        scheme = schemes[linear.name]
        assert scheme is not None
        count = linear.in_features * linear.out_features
        stored += count * scheme.bits_per_weight(linear.in_features)
        weights += count
    return stored / weights


def test_bits_per_weight_count_scales_and_zero_points(open_tiny: OpenTiny) -> None:
    model = open_tiny(RTN).model
    widths = choose_widths(
        model, falling_losses(model), SearchBudget(bits_per_weight=5.2), "compressed-tensors"
    )
    assert 5.0 < bits_per_weight(model, widths) <= 5.2
    assert len(set(widths)) > 1


def folder_bytes(folder: Path, model: BuildModel, widths: tuple[Width, ...]) -> int:
    """The size of the checkpoint that really comes of it."""
    schemes = with_widths(model.schemes, model_units(model.plan, model.schemes), widths)
    rounded = quantize_source(HfFolder(Path(model.source.name)), schemes.get)
    write_checkpoint(folder, model.source, rounded, {}, "compressed-tensors")
    return sum(path.stat().st_size for path in folder.iterdir())


def test_a_folder_is_no_larger_than_its_budget_and_uses_most_of_it(
    tmp_path: Path, open_tiny: OpenTiny
) -> None:
    model = open_tiny(RTN).model
    units = len(model_units(model.plan, model.schemes))
    narrow = folder_bytes(tmp_path / "narrow", model, (Width(3),) * units)
    wide = folder_bytes(tmp_path / "wide", model, (Width(8),) * units)
    budget = (narrow + wide) // 2
    widths = choose_widths(model, falling_losses(model), SearchBudget(size=str(budget)), "compressed-tensors")
    assert (
        0.5 * (wide - narrow) / 2
        < folder_bytes(tmp_path / "mixed", model, widths) - narrow
        <= budget - narrow
    )


def test_a_loss_is_met_with_few_bits(open_tiny: OpenTiny) -> None:
    model = open_tiny(RTN).model
    sensitivity = falling_losses(model)
    widths = choose_widths(model, sensitivity, SearchBudget(kl_mean=2.0), "compressed-tensors")
    loss = sum(row[WIDTHS.index(width)] for row, width in zip(sensitivity.losses, widths, strict=True))
    assert 1.0 < loss <= 2.0


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({"bits_per_weight": 3.2}, r"bits_per_weight can't be met; found 3\.2; expected 3\.594 or more"),
        ({"size": "1MB"}, r"size can't be met; found 1MB; expected \d+\.\d MB or more"),
    ],
)
def test_a_budget_below_the_narrowest_widths_names_the_nearest(
    open_tiny: OpenTiny, budget: dict[str, object], message: str
) -> None:
    model = open_tiny(RTN).model
    search = SearchSettings.model_validate({"budget": budget})
    with pytest.raises(RecipeError, match=message):
        require_possible(model, search, "compressed-tensors")


def test_a_loss_below_that_of_the_widest_widths_names_the_nearest(open_tiny: OpenTiny) -> None:
    model = open_tiny(RTN).model
    with pytest.raises(
        RecipeError, match=r"kl_mean can't be met; found 0\.001; expected 0\.076 nats or more"
    ):
        choose_widths(model, falling_losses(model), SearchBudget(kl_mean=0.001), "compressed-tensors")


def test_candidates_are_each_group_size_at_each_width_the_largest_first() -> None:
    search = SearchSettings.model_validate(
        {"budget": {"kl_mean": 1.0}, "bits": (4, 5), "group_size": (64, -1, 96)}
    )
    sizes = [(width.bits, width.group_size) for width in candidates(search)]
    assert sizes == [(4, -1), (4, 96), (4, 64), (5, -1), (5, 96), (5, 64)]


def test_larger_groups_lower_the_nearest_budget(open_tiny: OpenTiny) -> None:
    model = open_tiny(RTN).model
    search = SearchSettings.model_validate({"budget": {"bits_per_weight": 3.3}, "group_size": (32, -1)})
    require_possible(model, search, "compressed-tensors")
