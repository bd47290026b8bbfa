"""A walk holds one block's weights at a time, each loaded once."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.calibration.blocks import load_block
from gristmill.calibration.walk import BlockWalk
from gristmill.runtime.architectures import plan_model
from gristmill.runtime.sources.base import ModelSource, Tensor
from gristmill.runtime.sources.hf_folder import HfFolder


class RecordingSource:
    """A source that hands out arrays of its own and knows which were asked for and which still live."""

    def __init__(self, source: ModelSource) -> None:
        self._source = source
        self._handed_out: list[tuple[str, weakref.ref[Any]]] = []
        self.loads: list[str] = []

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def revision(self) -> str | None:
        return self._source.revision

    @property
    def config(self) -> Mapping[str, Any]:
        return self._source.config

    def tensor_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._source.tensor_shapes()

    def side_files(self) -> Mapping[str, bytes]:
        return self._source.side_files()

    def digest(self) -> str:
        return self._source.digest()

    def alive(self) -> frozenset[str]:
        return frozenset(name for name, array in self._handed_out if array() is not None)

    def load(self, name: str) -> Tensor:
        self.loads.append(name)
        # float32 and writable: torch shares such an array's memory, so it lives as long as its tensor
        array = np.array(self._source.load(name), dtype=np.float32)
        self._handed_out.append((name, weakref.ref(array)))
        return array


def test_only_one_block_of_weights_is_alive_at_a_time(tiny_llama: Path) -> None:
    recorded = RecordingSource(HfFolder(tiny_llama))
    plan = plan_model(recorded.config)
    walk = BlockWalk(plan, recorded, ((5, 6, 7), (8, 9)), compute="float32")
    assert recorded.alive() == frozenset()  # the embedding is gone, too
    for layer in plan.layers:
        weights = load_block(recorded, layer, walk.dtype)
        step = walk.enter(layer, weights)
        for index in range(len(layer.input_groups)):
            step.group(index, weights)
        step.leave(weights)
        assert recorded.alive() == frozenset(layer.tensor_shapes())
        del weights, step
        assert recorded.alive() == frozenset()
    names = recorded.loads
    blocks = [set(layer.tensor_shapes()) for layer in plan.layers]
    sizes = [1, *map(len, blocks)]
    parts = [set(names[sum(sizes[:i]) : sum(sizes[: i + 1])]) for i in range(len(sizes))]
    assert parts == [{f"{plan.embedding}.weight"}, *blocks]
    assert len(names) == sum(sizes)
