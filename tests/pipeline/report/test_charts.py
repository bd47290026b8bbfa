"""Charts keep everything inside their axes, and say what they draw."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.calibration.samples import LengthQuantiles, SourceSummary
from gristmill.pipeline.report.builds import BuildPoint
from gristmill.pipeline.report.charts import (
    axis,
    error_map,
    length_histogram,
    outlier_columns,
    size_against_quality,
)
from gristmill.pipeline.report.errors_by_layer import error_grid
from gristmill.pipeline.report.mix import Mix
from gristmill.pipeline.validate.outliers import LayerOutliers


def point(size: int, kl: float, *, present: bool = False, best: bool = False) -> BuildPoint:
    return BuildPoint(f"b{size}", "", "reference", (), size, 4.0, kl, 10.0, 0.9, present, best)


def mix(octaves: tuple[int, ...]) -> Mix:
    source = SourceSummary("a", "text", sum(octaves), 9, 1.0, 0, LengthQuantiles(1, 2, 3, 4), octaves)
    return Mix((source,), 1, 9, {}, {})


@given(st.floats(1e-9, 1e15))
def test_an_axis_ends_at_a_round_number_not_below_its_values(largest: float) -> None:
    found = axis(largest)
    assert largest * (1 - 1e-9) <= found.top <= 2.5 * largest
    assert 2 <= len(found.ticks) <= 7
    assert found.ticks[0].at == 0
    assert found.ticks[-1].at == pytest.approx(100)


def test_an_axis_of_zeros_is_an_axis() -> None:
    assert axis(0.0).top > 0


@given(st.lists(st.tuples(st.integers(1, 10**11), st.floats(0, 20)), min_size=1, max_size=30))
def test_every_point_and_label_lies_within_the_plot(values: list[tuple[int, float]]) -> None:
    chart = size_against_quality([point(*value) for value in values], base_size=10**9)
    assert len(chart.marks) == len(values) + 1
    for mark in chart.marks:
        assert 0 <= mark.x <= 100 + 1e-9
        assert -1e-9 <= mark.y <= 100
        assert 0 <= mark.label_y <= mark.y


def test_the_present_build_is_marked_and_the_best_are_joined() -> None:
    points = [point(100, 0.4, best=True), point(200, 0.2, present=True, best=True), point(300, 0.3)]
    chart = size_against_quality(points, base_size=1000)
    assert {mark.label: mark.kind for mark in chart.marks} == {
        "original": "original",
        "b100": "best",
        "b200": "present",
        "b300": "other",
    }
    places = {mark.label: (mark.x, mark.y) for mark in chart.marks}
    assert chart.front == (places["b100"], places["b200"], places["original"])


def test_labels_of_neighbours_do_not_cover_each_other() -> None:
    chart = size_against_quality([point(100 + index, 0.2) for index in range(4)], base_size=1000)
    heights = sorted(mark.label_y for mark in chart.marks if mark.label != "original")
    assert all(high - low > 5 for low, high in itertools.pairwise(heights))


def test_a_histogram_shows_shares_of_each_side() -> None:
    chart = length_histogram(mix((0, 0, 1, 3)), mix((0, 0, 0, 0, 5)))
    assert [column.label for column in chart.columns] == ["4", "8", "16"]
    assert [chart.y.top * column.first / 100 for column in chart.columns] == pytest.approx([25, 75, 0])
    assert [chart.y.top * (column.second or 0) / 100 for column in chart.columns] == pytest.approx(
        [0, 0, 100]
    )
    assert chart.columns[0].title == "4 to 7 tokens: 25% in calibration, 0% in validation"


def test_outlier_columns_are_ratios_with_some_layers_named() -> None:
    layers = [LayerOutliers(layer, 10.0 * (layer + 1), 2.0, ()) for layer in range(30)]
    chart = outlier_columns(layers)
    assert [chart.y.top * column.first / 100 for column in chart.columns] == pytest.approx(
        [5.0 * (layer + 1) for layer in range(30)]
    )
    assert [column.label for column in chart.columns if column.label] == ["0", "10", "20"]
    assert all(column.second is None for column in chart.columns)


def test_a_histogram_of_nothing_is_empty() -> None:
    assert length_histogram(None, None).columns == ()


def test_a_heat_map_has_a_cell_for_each_layer_and_kind() -> None:
    names = {
        f"model.layers.{layer}.mlp.{kind}": 0.01 * layer for layer in range(3) for kind in ("up", "down")
    }
    chart = error_map(error_grid({**names, "lm_head": 0.5}))
    assert [row.label for row in chart.rows] == ["mlp.down", "mlp.up"]
    assert len(chart.cells) == 6
    assert chart.largest == 0.02
    assert {round(cell.strength, 2) for cell in chart.cells if cell.title.startswith("layer 2")} == {1.0}
    assert all(cell.left + cell.width <= 100 + 1e-9 for cell in chart.cells)
    assert all(cell.top + cell.height <= 100 + 1e-9 for cell in chart.cells)
