"""The walk refuses damaged weights, overflowing activations and sequences that the model cannot read."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from gristmill.calibration.blocks import load_block
from gristmill.calibration.walk import BlockWalk
from gristmill.runtime.architectures import plan_model
from gristmill.runtime.errors import ModelError, PromptError
from gristmill.runtime.model_plan import ModelPlan
from gristmill.runtime.sources.base import ModelSource, Tensor
from gristmill.runtime.sources.hf_folder import HfFolder
from tests.tiny_checkpoints import dense_mlp

Compute = Literal["bfloat16", "float32"]

SEQUENCES = ((5, 6, 7), (8, 9), (10, 11, 12))


@pytest.fixture
def source(tiny_llama: Path) -> HfFolder:
    return HfFolder(tiny_llama)


@pytest.fixture
def plan(source: HfFolder) -> ModelPlan:
    return plan_model(source.config)


def with_tensor(monkeypatch: pytest.MonkeyPatch, source: ModelSource, name: str, tensor: Tensor) -> None:
    """Let `source` hold `tensor` under `name`."""
    load = source.load
    monkeypatch.setattr(source, "load", lambda wanted: tensor if wanted == name else load(wanted))


@pytest.mark.parametrize("compute", ["bfloat16", "float32"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_not_finite_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, plan: ModelPlan, source: HfFolder, compute: Compute, value: float
) -> None:
    layer = plan.layers[1]
    for name in layer.tensor_shapes():
        damaged = np.array(source.load(name), dtype=np.float32)
        damaged.flat[-1] = value
        with monkeypatch.context() as patch:
            with_tensor(patch, source, name, damaged)
            with pytest.raises(ModelError, match=rf"tensor {name} of .* is not finite"):
                load_block(source, layer, getattr(torch, compute))


def test_an_embedding_that_is_not_finite_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, plan: ModelPlan, source: HfFolder
) -> None:
    name = f"{plan.embedding}.weight"
    damaged = np.array(source.load(name), dtype=np.float32)
    damaged[5, 0] = np.nan
    with_tensor(monkeypatch, source, name, damaged)
    with pytest.raises(ModelError, match=rf"tensor {name} of .* is not finite"):
        BlockWalk(plan, source, SEQUENCES)


def test_a_weight_of_another_shape_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, plan: ModelPlan, source: HfFolder
) -> None:
    layer = plan.layers[0]
    name = dense_mlp(layer).down.weight
    with_tensor(monkeypatch, source, name, source.load(name)[:, 1:])
    with pytest.raises(ModelError, match=rf"tensor {name} of .*\(64, 127\).*\(64, 128\)"):
        load_block(source, layer, torch.float32)


@pytest.mark.parametrize("compute", ["bfloat16", "float32"])
def test_an_activation_that_overflows_is_refused_by_layer(
    plan: ModelPlan, source: HfFolder, compute: Compute
) -> None:
    walk = BlockWalk(plan, source, SEQUENCES, compute=compute)
    layer = plan.layers[1]
    weights = load_block(source, layer, walk.dtype)
    loud = {**weights, dense_mlp(layer).up.weight: weights[dense_mlp(layer).up.weight] * 1e38}
    down = dense_mlp(layer).down.name
    with pytest.raises(ModelError, match=rf"the input of {down} is not finite"):
        walk.observe(layer, loud)
    with pytest.raises(ModelError, match=rf"the output of layer 1 \({down}\) is not finite"):
        walk.advance(layer, loud)
    step = walk.enter(layer, weights)
    for index in range(3):
        step.group(index, loud)
    with pytest.raises(ModelError, match=rf"the input of {down} is not finite"):
        step.group(3, loud)


@pytest.mark.parametrize("token", [-1, 1_000_000])
def test_a_token_out_of_the_vocabulary_is_refused(plan: ModelPlan, source: HfFolder, token: int) -> None:
    with pytest.raises(PromptError, match=f"found {token}.*0 to {plan.vocab_size - 1}"):
        BlockWalk(plan, source, [(1, 2), (3, token)])


@pytest.mark.parametrize("sequences", [(), ((), ())])
def test_no_tokens_are_refused(
    plan: ModelPlan, source: HfFolder, sequences: tuple[tuple[int, ...], ...]
) -> None:
    with pytest.raises(PromptError, match="no tokens"):
        BlockWalk(plan, source, sequences)


def test_a_sequence_longer_than_the_model_reads_is_refused(plan: ModelPlan, source: HfFolder) -> None:
    BlockWalk(plan, source, [(1,) * plan.max_positions])
    with pytest.raises(PromptError, match=f"{plan.max_positions + 1} tokens.*{plan.max_positions} positions"):
        BlockWalk(plan, source, [(1, 2), (1,) * (plan.max_positions + 1)])
