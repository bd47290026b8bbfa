"""A walk whose linears read quantized inputs carries on what the served blocks give, and keeps rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gristmill.calibration.blocks import load_block
from gristmill.calibration.observers import InputObserver
from gristmill.calibration.streams import run_block
from gristmill.calibration.walk import BlockWalk
from gristmill.runtime.architectures import plan_model
from gristmill.runtime.scheme import ActivationScheme, QuantScheme
from gristmill.runtime.sources.hf_folder import HfFolder

W8A8 = QuantScheme(8, -1, True, activation=ActivationScheme("int", 8, "token", dynamic=True))
SEQUENCES = tuple(tuple((11 * row + 5 * column) % 700 for column in range(24)) for row in range(6))


@pytest.mark.parametrize("staged", [True, False], ids=["in stages", "at once"])
def test_states_are_those_of_blocks_with_quantized_inputs(tiny_llama: Path, staged: bool) -> None:
    source = HfFolder(tiny_llama)
    plan = plan_model(source.config)
    schemes = {linear.name: W8A8 for linear in plan.linears if not linear.name.endswith("k_proj")}
    walk = BlockWalk(plan, source, SEQUENCES, compute="float32", schemes=schemes)
    plain = BlockWalk(plan, source, SEQUENCES, compute="float32")
    layer = plan.layers[0]
    weights = load_block(source, layer, walk.dtype)
    expected = [run_block(layer, weights, hidden, schemes=schemes) for hidden in walk.hidden]
    step = walk.enter(layer, weights)
    for index in range(len(layer.input_groups) if staged else 0):
        step.group(index, weights)
    step.leave(weights)
    plain.advance(layer, weights)
    for found, wanted, unquantized in zip(walk.hidden, expected, plain.hidden, strict=True):
        torch.testing.assert_close(found, wanted)
        assert not torch.allclose(found, unquantized)


@pytest.mark.parametrize("keep_rows", [0, 16])
def test_about_as_many_rows_are_kept_as_were_asked_for(tiny_llama: Path, keep_rows: int) -> None:
    source = HfFolder(tiny_llama)
    plan = plan_model(source.config)
    walk = BlockWalk(plan, source, SEQUENCES, compute="float32", sample_every=1, keep_rows=keep_rows)
    layer = plan.layers[0]
    for known in walk.observe(layer, load_block(source, layer, walk.dtype)).values():
        if keep_rows == 0:
            assert known.rows is None
        else:
            assert known.rows is not None
            assert keep_rows / 2 <= len(known.rows) <= 2 * keep_rows


@pytest.mark.parametrize("size", [1, 3, 4, 7])
def test_the_rows_that_are_kept_do_not_depend_on_batches(size: int) -> None:
    rows = torch.arange(40.0).view(20, 2)
    observer = InputObserver("x", 2, keep_every=5)
    for batch in torch.split(rows, size):
        observer.update(batch)
    kept = observer.statistics().rows
    assert kept is not None
    assert torch.equal(kept, rows[::5])
