"""Rotary frequencies against those of transformers, and rope settings that are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gristmill.runtime.architectures.rope import read_max_positions, read_rope
from gristmill.runtime.errors import InputError, ModelError, UnsupportedError

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "llama3": LLAMA3,
    "llama3 narrow": {**LLAMA3, "factor": 8.0, "high_freq_factor": 1.5},
    "yarn": YARN,
    "yarn with betas": {**YARN, "beta_fast": 16, "beta_slow": 2.0},
    "yarn not truncated": {**YARN, "truncate": False},
    "yarn with mscale": {**YARN, "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 1.2},
    "yarn with a factor": {**YARN, "attention_factor": 0.8},
    "yarn within the original length": {**YARN, "factor": 1.0},
}


def config(**changes: Any) -> dict[str, Any]:
    return {"max_position_embeddings": 32_768, **changes}


@pytest.mark.parametrize("theta", [10_000.0, 1_000_000.0])
@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_are_those_of_transformers(name: str, theta: float) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    scaling = {**SCALINGS[name], "rope_theta": theta}
    oracle = LlamaRotaryEmbedding(
        LlamaConfig(head_dim=64, max_position_embeddings=32_768, rope_parameters=dict(scaling))
    )
    rope = read_rope(config(rope_parameters=scaling), 64)
    torch.testing.assert_close(torch.tensor(rope.inv_freq), oracle.inv_freq, rtol=2e-6, atol=0)
    assert rope.attention_factor == pytest.approx(oracle.attention_scaling)
    assert rope.rotary_dim == 64


@pytest.mark.parametrize("name", SCALINGS)
def test_both_dialects_of_transformers_mean_the_same(name: str) -> None:
    new = read_rope(config(rope_parameters={**SCALINGS[name], "rope_theta": 5e5}), 32)
    assert read_rope(config(rope_theta=5e5, rope_scaling=SCALINGS[name]), 32) == new
    older = {("type" if key == "rope_type" else key): value for key, value in SCALINGS[name].items()}
    assert read_rope(config(rope_theta=500_000, rope_scaling=older), 32) == new


@pytest.mark.parametrize("empty", [{}, {"rope_scaling": None}, {"rope_parameters": {}, "rope_theta": None}])
def test_without_settings_the_default_base_counts(empty: dict[str, Any]) -> None:
    assert read_rope(config(**empty), 4).inv_freq == (1.0, 0.01)
    assert read_rope(config(**empty), 4, theta=400.0).inv_freq == pytest.approx((1.0, 0.05))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 32_768),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, 32_768),
        ({"rope_scaling": LLAMA3}, 32_768),
        ({"rope_scaling": YARN}, 131_072),
        ({"rope_scaling": {**YARN, "original_max_position_embeddings": 4096}}, 32_768),
    ],
    ids=["none", "linear", "llama3", "yarn extends", "yarn already extended"],
)
def test_yarn_extends_the_positions_to_its_factor(changes: dict[str, Any], expected: int) -> None:
    assert read_max_positions(config(**changes)) == expected


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "rope_scaling.rope_type; found 'dynamic'; expected one of"),
        ({"type": "longrope", "factor": 2.0}, "rope_scaling.type; found 'longrope'"),
        ({**LLAMA3, "short_factor": [1.0]}, "rope_scaling.short_factor of rope type llama3"),
        ({"rope_type": "default", "factor": 2.0}, "rope_scaling.factor of rope type default"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor; found 0.5"),
        ({"full_attention": {"rope_type": "default"}}, "rope_scaling.full_attention"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(scaling: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError) as refusal:
        read_rope(config(rope_scaling=scaling), 16)
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_theta": "10000"}, "rope_theta; found '10000'"),
        ({"rope_theta": 1}, "rope_theta; found 1.0; expected more than 1"),
        ({"rope_theta": 0}, "rope_theta; found 0"),
        ({"rope_scaling": [1]}, "rope_scaling; found [1]; expected an object"),
        ({"rope_scaling": {"rope_type": 3}}, "rope_scaling.rope_type; found 3"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "2"}}, "rope_scaling.factor; found '2'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "rope_scaling.factor; found 0"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_parameters.original_max_position"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "rope_scaling.high_freq_factor; found 1.0"),
        ({"rope_scaling": {**YARN, "beta_fast": 0.5}}, "rope_scaling.beta_fast; found 0.5"),
        ({"rope_scaling": {**YARN, "truncate": "no"}}, "rope_scaling.truncate; found 'no'"),
        ({"rope_scaling": YARN, "rope_parameters": LLAMA3}, "contradict each other"),
    ],
)
def test_a_wrong_value_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError) as refusal:
        read_rope(config(**changes), 16)
    assert message in str(refusal.value)


def test_an_odd_head_is_refused() -> None:
    with pytest.raises(InputError, match="head_dim; found 15; expected an even number"):
        read_rope(config(), 15)
