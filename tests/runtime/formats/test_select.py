"""Quantization blocks seen in the wild are read right or refused by their own name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gristmill.runtime.errors import UnsupportedError
from gristmill.runtime.formats.select import format_of
from gristmill.runtime.scheme import ActivationScheme, QuantScheme

LINEARS = ["model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj", "lm_head"]

READ: dict[str, dict[str, QuantScheme]] = {
    "QC08": {},  # MXFP4 for experts alone
    "QC47": dict.fromkeys(LINEARS[:2], QuantScheme(4, 128, symmetric=False, scale_dtype="float16")),
    "QC78": dict.fromkeys(LINEARS[:2], QuantScheme(4, 128, symmetric=True)),
    "QC79": dict.fromkeys(
        LINEARS[:2],
        QuantScheme(8, -1, True, "float", activation=ActivationScheme("float", 8, "token", dynamic=True)),
    ),
}
"""The cases in a format that is ours; all others must be refused."""

NAMED_IN_THE_REFUSAL = {
    "fp8": "fp8",
    "gptq": "gptq",
    "mxfp4": "mxfp4",
    "quark": "quark",
    "hqq": "hqq",
    "fbgemm_fp8": "fbgemm_fp8",
    "modelopt": "modelopt",
    "auto-round": "auto-round",
}


def field_cases(data_dir: Path) -> dict[str, dict[str, Any]]:
    lines = (data_dir / "field" / "quant_configs.jsonl").read_text().splitlines()
    return {case["id"]: case["quant_config"] for case in map(json.loads, lines)}


def read(config: dict[str, Any]) -> dict[str, QuantScheme]:
    return format_of(config).parse_config(config, LINEARS)


def test_every_case_of_the_field_is_read_or_refused(data_dir: Path) -> None:
    outcomes = {}
    for name, config in field_cases(data_dir).items():
        try:
            outcomes[name] = read(config)
        except UnsupportedError:
            continue
    assert outcomes == READ


def test_experts_of_a_published_mxfp4_model_are_read(data_dir: Path) -> None:
    expert = "model.layers.1.mlp.experts.0.up_proj"
    config = field_cases(data_dir)["QC08"]
    found = format_of(config).parse_config(config, [expert, *LINEARS])
    assert {name: scheme.name for name, scheme in found.items()} == {expert: "MXFP4A16"}


def test_refusals_name_the_method_and_its_algorithm(data_dir: Path) -> None:
    for name, config in field_cases(data_dir).items():
        method = config.get("quant_method")
        if name in READ or method not in NAMED_IN_THE_REFUSAL:
            continue
        with pytest.raises(UnsupportedError, match=NAMED_IN_THE_REFUSAL[method]) as caught:
            read(config)
        algorithm = config.get("quant_algo") or config.get("quantization", {}).get("quant_algo")
        assert not algorithm or algorithm in str(caught.value)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("QC09", r"quant_method modelopt \(NVFP4\)"),
        ("QC28", "strategy; found 'tensor'"),
        ("QC29", "strategy; found 'tensor'"),
        ("QC32", "quant_method gptq"),
        ("QC49", "version; found gemv"),
        ("QC58", "quant_method bitsandbytes"),
        ("QC77", "strategy; found 'tensor'"),
    ],
)
def test_refusal_says_what_it_is(data_dir: Path, case: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        read(field_cases(data_dir)[case])


def test_block_without_any_mark_is_refused_with_its_keys() -> None:
    with pytest.raises(UnsupportedError, match="found no quant_method among bits, foo"):
        format_of({"foo": 1, "bits": 4})
