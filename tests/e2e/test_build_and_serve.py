"""From a recipe to answers over HTTP, with nothing mocked."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is a mill?"}]


@pytest.fixture(scope="module")
def client(built) -> Iterator[openai.OpenAI]:
    """A real client of a real server process."""
    server = built.start("serve", "tiny", "--port", "0")
    line = server.stdout.readline()
    assert "(ready)" in line, server.communicate(timeout=60)[1]
    url = line.split(" at ")[1].split()[0]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client
    server.send_signal(signal.SIGINT)
    _, err = server.communicate(timeout=60)
    assert server.returncode == 0, err


def test_inspect_has_the_shape_of_the_contract(built) -> None:
    found = built.json("inspect", "tiny")
    assert found["schemes"] == {"W4A16_ASYM_G32": 21}
    assert found["bits_per_weight"]["quantized_layers"] == pytest.approx(4 + (16 + 4) / 32)
    assert set(found["validation"]) == {"native-x86", "reference"}
    assert set(found["validation"]["native-x86"]) >= {"perplexity", "kl", "top1_agreement", "tasks"}
    assert found["size_bytes"]["total"] > found["size_bytes"]["checkpoint"] > 0
    assert found["calibration"]["tokens"] == 16 * 128
    assert [engine["target"] for engine in found["engines"]] == ["native-x86", "reference"]
    assert all(engine["golden"]["prompts"] == 4 for engine in found["engines"])
    assert found["size_bytes"]["engines"] > 0


def test_list_names_what_was_built(built) -> None:
    (row,) = built.json("list")
    assert (row["name"], row["tag"]) == ("tiny", "latest")


def test_verify_accepts_the_artifact_and_names_a_changed_file(built, tmp_path: Path) -> None:
    assert built.run("verify", "tiny").returncode == 0
    (artifact,) = built.store.glob("artifacts/sha256-*")
    copy = tmp_path / "copy"
    for path in artifact.rglob("*"):
        if path.is_file():
            target = copy / path.relative_to(artifact)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    changed = copy / "checkpoint" / "tokenizer_config.json"
    changed.write_bytes(changed.read_bytes().replace(b"{", b"[", 1))
    outcome = built.run("verify", copy)
    assert outcome.returncode == 1
    assert "checkpoint/tokenizer_config.json" in outcome.stderr


def test_a_served_chat_streams_what_it_answers_at_once(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == "tiny"
    assert model.model_extra is not None
    engine = model.model_extra["engine"]
    assert (engine["executor"], engine["compute"], engine["kv_cache"]) == ("native-x86", "int8", "bfloat16")
    assert "int4 g32" in engine["kernels"]["qkv"]
    whole = client.chat.completions.create(model="tiny", messages=QUESTION, max_tokens=12, temperature=0)
    stream: openai.Stream[ChatCompletionChunk] = client.chat.completions.create(
        model="tiny", messages=QUESTION, max_tokens=12, temperature=0, stream=True
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 12 or whole.choices[0].finish_reason == "stop"


def test_offline_chat_and_generate_answer_as_the_server_does(built, client, tmp_path: Path) -> None:
    served = client.chat.completions.create(model="tiny", messages=QUESTION, max_tokens=8, temperature=0)
    expected = served.choices[0].message.content
    chat = built.run("chat", "tiny", "What is a mill?", "--max-tokens", 8, "--json")
    assert json.loads(chat.stdout)["text"] == expected
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"messages": QUESTION}) + "\n" + json.dumps({"prompt": "Once"}) + "\n")
    done = built.run("generate", "tiny", "--prompts", prompts, "--max-tokens", 8)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows[0]["text"] == expected
    assert rows[1]["completion_tokens"] <= 8


def test_a_failed_gate_exits_1_names_the_costly_layers_and_makes_no_artifact(
    command, write_recipe, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path / "recipe")
    outcome = command.run("build", recipe, "--set", "validate.gates.kl_mean=< 0.0000001")
    assert outcome.returncode == 1, outcome.stderr
    error = next(line for line in outcome.stderr.splitlines() if line.startswith("error: "))
    assert "kl_mean" in error
    assert "_proj" in error
    assert command.json("list") == []


@pytest.mark.parametrize("method", ["rtn", "awq"])
def test_the_other_methods_build_too(command, write_recipe, tmp_path: Path, method: str) -> None:
    changes = {"calibration": None} if method == "rtn" else {}
    quantize = {"scheme": "W8A16", "method": method, "group_size": -1}
    recipe = write_recipe(tmp_path / "recipe", quantize=quantize, **changes)
    assert command.json("build", recipe)["schemes"] == {"W8A16_CHANNEL": 21}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--engine", "reference", "--compute", "float32"], "executor reference, compute float32"),
        (["--compute", "bfloat16", "--kv-cache-dtype", "int8"], "compute bfloat16, KV cache int8"),
    ],
)
def test_the_engine_and_its_number_formats_can_be_chosen(
    built, tmp_path: Path, arguments: list[str], expected: str
) -> None:
    done = built.start("serve", "tiny", "--port", "0", "--max-num-seqs", "1", *arguments)
    line = done.stdout.readline()
    done.send_signal(signal.SIGINT)
    _, err = done.communicate(timeout=60)
    assert "(ready)" in line, err
    assert expected in err
    assert "golden prompts: 1 of 4 run" in err


def test_an_engine_is_added_to_a_built_artifact_and_its_proof_repeated(
    command, write_recipe, tmp_path: Path
) -> None:
    quantize = {"scheme": "W4A16", "method": "rtn", "group_size": 32}
    parent = command.json("build", write_recipe(tmp_path / "recipe", quantize=quantize, calibration=None))
    found = command.json("compile", "tiny", "--target", "native-x86")
    assert found["parent"] == parent["digest"]
    assert set(found["validation"]) == {"native-x86", "reference"}
    again = command.run("compile", "tiny", "--target", "native-x86")
    assert "nothing to do" in again.stderr
    assert again.stdout.strip().endswith(found["digest"])
    proof = command.json("verify", "tiny", "--target", "native-x86")
    assert proof["golden"]["compute"] == "int8"
