"""Every `config.json` collected from the field is planned right, or refused by name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gristmill.runtime.architectures import ARCHITECTURES, plan_model
from gristmill.runtime.errors import UnsupportedError

REFUSED_MODEL_TYPES = {
    "aic_MiniMaxAI_MiniMax-M2.5.json": "minimax_m2",
    "aic_XiaomiMiMo_MiMo-7B-Base.json": "mimo",
    "aic_google_gemma-4-26B-A4B.json": "gemma4",
    "aic_nvidia_Nemotron-H-56B-Base-8K.json": "nemotron_h",
    "aic_stepfun-ai_Step-3.7-Flash.json": "step3p7",
    "aic_zai-org_GLM-5.json": "glm_moe_dsa",
    "cohere2_tinyaya_cut.json": "cohere2",
    "command_r_35b.json": "cohere",
    "dbrx_132b.json": "dbrx",
    "deepseek_v3.json": "deepseek_v3",
    "gemma3.json": "gemma3",
    "gemma3_text.json": "gemma3_text",
    "gemma_7b.json": "gemma",
    "gpt_oss_20b.json": "gpt_oss",
    "internlm2_7b.json": "internlm2",
    "ipex_baichuan.json": "baichuan",
    "ipex_deepseekv2.json": "deepseek_v2",
    "ipex_falcon.json": "falcon",
    "ipex_gptj.json": "gptj",
    "ipex_mpt.json": "mpt",
    "ipex_yuan.json": "yuan",
    "phi3.json": "phi3",
    "phimoe.json": "phimoe",
    "qwen3_5_35b_a3b.json": "qwen3_5_moe",
    "qwen_7b.json": "qwen",
    "xverse_7b.json": "xverse",
}


@dataclass(frozen=True)
class Facts:
    """What is known of a model from its card and its tensors."""

    parameters: int
    kv_elements_per_token: int
    linears: int
    dtype: str
    max_positions: int
    tied: bool
    first: tuple[str, int, int]
    last: tuple[str, int, int]


PLANNED = {
    "llama3.json": Facts(
        parameters=70_553_706_496,
        kv_elements_per_token=163_840,
        linears=560,
        dtype="bfloat16",
        max_positions=8192,
        tied=False,
        first=("model.layers.0.self_attn.q_proj", 8192, 8192),
        last=("model.layers.79.mlp.down_proj", 28672, 8192),
    ),
    "mixtral.json": Facts(
        parameters=46_702_792_704,
        kv_elements_per_token=65_536,
        linears=896,
        dtype="bfloat16",
        max_positions=32_768,
        tied=False,
        first=("model.layers.0.self_attn.q_proj", 4096, 4096),
        last=("model.layers.31.block_sparse_moe.experts.7.w2", 14336, 4096),
    ),
    "smollm_1.7b.json": Facts(
        parameters=1_711_376_384,
        kv_elements_per_token=98_304,
        linears=168,
        dtype="float32",
        max_positions=2048,
        tied=True,
        first=("model.layers.0.self_attn.q_proj", 2048, 2048),
        last=("model.layers.23.mlp.down_proj", 8192, 2048),
    ),
    "qwen3_8b_fp8.json": Facts(
        parameters=8_190_735_360,
        kv_elements_per_token=73_728,
        linears=252,
        dtype="bfloat16",
        max_positions=40_960,
        tied=False,
        first=("model.layers.0.self_attn.q_proj", 4096, 4096),
        last=("model.layers.35.mlp.down_proj", 12288, 4096),
    ),
    "smollm3_tiny.json": Facts(
        parameters=167_232,
        kv_elements_per_token=256,
        linears=28,
        dtype="bfloat16",
        max_positions=256,
        tied=True,
        first=("model.layers.0.self_attn.q_proj", 64, 64),
        last=("model.layers.3.mlp.down_proj", 128, 64),
    ),
}


def field_config(data_dir: Path, name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((data_dir / "field" / "configs" / name).read_text())
    return config


def test_every_collected_configuration_is_covered_here(data_dir: Path) -> None:
    files = {path.name for path in (data_dir / "field" / "configs").glob("*.json")} - {"index.json"}
    assert files == PLANNED.keys() | REFUSED_MODEL_TYPES.keys()


@pytest.mark.parametrize("name", PLANNED)
def test_a_supported_configuration_is_planned_as_its_model_is(name: str, data_dir: Path) -> None:
    plan = plan_model(field_config(data_dir, name))
    first, last = plan.linears[0], plan.linears[-1]
    assert PLANNED[name] == Facts(
        parameters=plan.num_parameters(),
        kv_elements_per_token=plan.kv_elements_per_token,
        linears=len(plan.linears),
        dtype=plan.dtype,
        max_positions=plan.max_positions,
        tied=plan.head is None,
        first=(first.name, first.in_features, first.out_features),
        last=(last.name, last.in_features, last.out_features),
    )


@pytest.mark.parametrize("name", REFUSED_MODEL_TYPES)
def test_an_unsupported_configuration_is_refused_by_its_model_type(name: str, data_dir: Path) -> None:
    with pytest.raises(UnsupportedError) as refusal:
        plan_model(field_config(data_dir, name))
    assert str(refusal.value) == (
        f"config.json: model_type; found '{REFUSED_MODEL_TYPES[name]}'; expected " + ", ".join(ARCHITECTURES)
    )


def test_the_norms_of_a_planned_model_feed_the_right_projections(data_dir: Path) -> None:
    groups = plan_model(field_config(data_dir, "qwen3_8b_fp8.json")).layers[7].scaling_groups
    layer = "model.layers.7"
    assert [(group.source, [linear.name for linear in group.linears]) for group in groups] == [
        (f"{layer}.input_layernorm", [f"{layer}.self_attn.{name}_proj" for name in "qkv"]),
        (f"{layer}.self_attn.v_proj", [f"{layer}.self_attn.o_proj"]),
        (f"{layer}.post_attention_layernorm", [f"{layer}.mlp.gate_proj", f"{layer}.mlp.up_proj"]),
        (f"{layer}.mlp.up_proj", [f"{layer}.mlp.down_proj"]),
    ]


def test_layers_without_rotary_embedding_are_those_of_the_configuration(data_dir: Path) -> None:
    plan = plan_model(field_config(data_dir, "smollm3_tiny.json"))
    assert [layer.attention.rope is None for layer in plan.layers] == [False, False, False, True]
