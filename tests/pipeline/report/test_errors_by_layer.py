"""Errors are sorted out by layer and by kind of module."""

from __future__ import annotations

import pytest

from gristmill.pipeline.report.errors_by_layer import error_grid


def test_linears_fall_into_their_layer_and_kind() -> None:
    grid = error_grid({"model.layers.0.mlp.up": 0.1, "model.layers.1.mlp.up": 0.3, "lm_head": 0.2})
    assert grid.layers == 2
    assert [(cell.layer, cell.kind, cell.error) for cell in grid.cells] == [
        (0, "mlp.up", 0.1),
        (1, "mlp.up", 0.3),
    ]
    by_kind = {kind.kind: kind for kind in grid.kinds}
    assert by_kind["mlp.up"].mean == pytest.approx(0.2)
    assert by_kind["mlp.up"].worst == "model.layers.1.mlp.up"
    assert by_kind["lm_head"].largest == 0.2


def test_the_experts_of_a_layer_share_a_cell() -> None:
    grid = error_grid({f"model.layers.0.mlp.experts.{index}.up": float(index) for index in range(4)})
    (cell,) = grid.cells
    assert (cell.kind, cell.error) == ("mlp.experts.*.up", 1.5)
