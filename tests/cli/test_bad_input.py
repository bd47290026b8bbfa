"""What a user gets wrong: one clear line each, the contract's exit code, nothing half done."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Edit = Callable[[dict[str, Any]], None]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """A few chats."""
    path = tmp_path / "chats.jsonl"
    chat = {
        "messages": [{"role": "user", "content": "Why is the sky blue? " * 40}],
        "reference": "Scattering.",
    }
    path.write_text("".join(json.dumps({**chat, "id": n}) + "\n" for n in range(8)))
    return path


@pytest.fixture
def write_recipe(tmp_path: Path, tiny_llama: Path, prompts: Path) -> Callable[[Edit], Path]:
    """A valid recipe on the tiny model, then edited."""

    def write(edit: Edit = lambda recipe: None) -> Path:
        recipe: dict[str, Any] = {
            "name": "tiny",
            "model": str(tiny_llama),
            "calibration": {"prompts": [{"path": str(prompts)}], "samples": 4, "max_tokens": 64},
            "quantize": {"scheme": "W4A16", "method": "gptq", "group_size": 32},
        }
        edit(recipe)
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(recipe))
        return path

    return write


def set_key(path: str, value: object) -> Edit:
    """An edit that sets one key, such as `quantize.method`."""

    def edit(recipe: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        for parent in parents:
            recipe = recipe[parent]
        recipe[last] = value

    return edit


CASES = [
    ("quantize.method", "gptk", ["method", "gptq"]),
    ("quantize.group_size", "32", ["group_size", '"32"', "number"]),
    ("quantize.group_size", 48, ["48", "divide", "32"]),
    ("quantize.grop_size", 32, ["grop_size", "group_size"]),
    ("quantize.skip", ["lm_head", "model.nothing.*"], ["model.nothing.*", "matches no layer"]),
    ("calibration.samples", 0, ["samples", "0"]),
    ("calibration.samples", 100000, ["tokens", "samples"]),
    ("model", "no/such/folder.gguf", ["no/such/folder.gguf"]),
    ("model", "package:no_such_package", ["no_such_package", "pip install"]),
    ("calibration.prompts", [{"path": "absent.jsonl"}], ["absent.jsonl"]),
    (
        "quantize.overrides",
        [{"match": "*.down_proj", "bits": 8}, {"match": "*.mlp.*", "bits": 4}],
        ["down_proj", "8", "4"],
    ),
    ("validate", {"data": [{"path": "absent.txt"}]}, ["absent.txt"]),
]


@pytest.mark.parametrize(
    ("key", "value", "words"), CASES, ids=[f"{key}={value}"[:60] for key, value, _ in CASES]
)
def test_a_wrong_recipe_is_refused_with_what_found_and_expected(
    gristmill, write_recipe, store: Path, key: str, value: object, words: list[str]
) -> None:
    outcome = gristmill("build", write_recipe(set_key(key, value)))
    assert outcome.code == 2, outcome.err
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
    assert all(word in outcome.err for word in words), outcome.err
    assert "Traceback" not in outcome.err
    assert not list(store.glob("artifacts/*"))


def test_a_gate_on_an_unknown_metric_names_those_that_are_computed(gristmill, write_recipe, prompts) -> None:
    gates = {"data": [{"path": str(prompts), "kind": "chat"}], "gates": {"bleu": "> 0.3"}}
    outcome = gristmill("build", write_recipe(set_key("validate", gates)))
    assert outcome.code == 2
    assert "bleu" in outcome.err


def test_an_empty_prompt_file_is_named(gristmill, write_recipe, prompts: Path) -> None:
    prompts.write_text("")
    outcome = gristmill("build", write_recipe())
    assert outcome.code == 2
    assert prompts.name in outcome.err


def test_a_wrong_json_line_is_named_by_its_number(gristmill, write_recipe, prompts: Path) -> None:
    lines = prompts.read_text().splitlines()
    lines[2] = lines[2][:-5]
    prompts.write_text("\n".join(lines))
    outcome = gristmill("build", write_recipe())
    assert outcome.code == 2
    assert f"{prompts.name}:3" in outcome.err


def test_rows_that_the_template_refuses_are_all_listed(
    gristmill, write_recipe, prompts: Path, tiny_llama: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(tiny_llama, tmp_path / "strict")
    template = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}"
    (model / "chat_template.jinja").write_text(template + "{% endif %}{{ m.content }}{% endfor %}")
    rows = [json.loads(line) for line in prompts.read_text().splitlines()]
    for number in (1, 4):
        rows[number]["messages"].insert(0, {"role": "system", "content": "Be brief."})
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    outcome = gristmill("build", write_recipe(set_key("model", str(model))))
    assert outcome.code == 2
    assert f"{prompts.name}:2" in outcome.err
    assert f"{prompts.name}:5" in outcome.err
    assert "no system role" in outcome.err


def drop(name: str) -> Callable[[Path], None]:
    """A fault: one file is missing."""
    return lambda folder: (folder / name).unlink()


def truncate_weights(folder: Path) -> None:
    """A fault: a download that broke off."""
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def break_header(folder: Path) -> None:
    """A fault: a header that claims more than there is."""
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 60) + path.read_bytes()[8:])


def missing_shard(folder: Path) -> None:
    """A fault: an index that names a shard which is not there."""
    index = {"weight_map": {"model.embed_tokens.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def already_quantized(folder: Path) -> None:
    """A fault: a source that went through a quantizer before."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "quantization_config": {"quant_method": "gptq"}})
    )


MODEL_FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "no tokenizer": (drop("tokenizer.json"), "tokenizer"),
    "no config": (drop("config.json"), "config.json"),
    "no weights": (drop("model.safetensors"), "safetensors"),
    "truncated weights": (truncate_weights, "model.safetensors"),
    "broken header": (break_header, "model.safetensors"),
    "missing shard": (missing_shard, "model-00002-of-00002.safetensors"),
    "already quantized": (already_quantized, "gptq"),
}


@pytest.mark.parametrize("fault", MODEL_FAULTS)
def test_a_damaged_model_folder_is_refused_by_what_is_wrong(
    gristmill, write_recipe, tiny_llama: Path, tmp_path: Path, fault: str
) -> None:
    damage, word = MODEL_FAULTS[fault]
    model = shutil.copytree(tiny_llama, tmp_path / "model")
    damage(model)
    outcome = gristmill("build", write_recipe(set_key("model", str(model))))
    assert outcome.code == 2, outcome.err
    assert word in outcome.err
    assert "Traceback" not in outcome.err


def test_memory_below_the_plan_is_refused_with_both_numbers(gristmill, write_recipe) -> None:
    outcome = gristmill("build", write_recipe(), "--memory", "1MB")
    assert outcome.code == 2
    assert "--memory" in outcome.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["bild"],
        ["build"],
        ["build", "no-such-recipe"],
        ["build", "demo", "--sett", "a=b"],
        ["build", "demo", "--set", "quantize.bits"],
        ["build", "demo", "--memory", "lots"],
        ["inspect", "nobody"],
        ["inspect", "Bad Name!"],
        ["verify", "nobody@sha256:00"],
        ["serve", "nobody"],
        ["chat", "nobody", "hello"],
        ["inspect", "oci://localhost/x:1"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_exits_2_with_one_line(gristmill, arguments: list[str]) -> None:
    outcome = gristmill(*arguments)
    assert outcome.code == 2
    assert len(outcome.err.strip().splitlines()) == 1, outcome.err
    assert outcome.err.startswith("error: ")


@pytest.mark.parametrize(
    "row", ['{"messages": ["hello"]}', '{"messages": {}}', '{"prompt": 5}', '"hello"', "[" * 100_000]
)
def test_a_row_of_prompts_that_is_none_is_named_by_its_line(gristmill, tmp_path: Path, row: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "a"}}\n{row}\n')
    outcome = gristmill("generate", "m", "--prompts", path)
    assert outcome.code == 2, outcome.err
    assert f"{path}:2" in outcome.err


def test_results_do_not_replace_a_folder_or_a_device(gristmill, tmp_path: Path) -> None:
    outcome = gristmill("bench", "http://127.0.0.1:9", "--output", tmp_path)
    assert outcome.code == 2
    assert "no file" in outcome.err
