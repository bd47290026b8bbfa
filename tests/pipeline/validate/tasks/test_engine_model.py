"""Scores and answers of an engine in this process, beside transformers and the plain forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gristmill.pipeline.validate.tasks.engine_model import EngineModel, split_tokens
from gristmill.pipeline.validate.tasks.model import Continuation, Prompt
from gristmill.pipeline.validate.tasks.open_model import source_model
from gristmill.runtime.sources.hf_folder import HfFolder
from gristmill.runtime.sources.open import open_source
from gristmill.runtime.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def model(tiny_llama: Path) -> Iterator[EngineModel]:
    source = HfFolder(tiny_llama)
    opened = source_model(source, source.digest())
    yield opened
    opened.close()


def _by_transformers(folder: Path, before: list[int], behind: list[int]) -> tuple[float, bool]:
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    with torch.inference_mode():
        rows = network(torch.tensor([[*before, *behind]])).logits[0].float()
    rows = rows[len(before) - 1 : -1]
    logprobs = torch.log_softmax(rows, -1)[range(len(behind)), behind]
    return float(logprobs.sum()), rows.argmax(-1).tolist() == behind


def test_a_score_is_the_sum_of_the_continuation_s_log_probabilities(
    model: EngineModel, tiny_llama: Path
) -> None:
    asked = Continuation("The miller has two sacks of", " flour and a stone")
    (score,) = model.score([asked])
    expected, greedy = _by_transformers(tiny_llama, *split_tokens(load_tokenizer(tiny_llama), asked))
    assert score.logprob == pytest.approx(expected, abs=0.05)
    assert score.greedy == greedy
    assert not score.truncated


def test_scores_do_not_depend_on_what_is_scored_beside_them(model: EngineModel) -> None:
    asked = [Continuation("Once upon a", f" time {n}" * (n + 1)) for n in range(12)]
    alone = [model.score([each])[0].logprob for each in asked]
    assert [score.logprob for score in model.score(asked)] == pytest.approx(alone, rel=0.001)


def test_a_context_too_long_loses_its_beginning_and_says_so(model: EngineModel) -> None:
    long = Continuation("word " * 600 + "Once upon a", " time")
    short = Continuation("Once upon a", " time")
    scores = model.score([long, short])
    assert [score.truncated for score in scores] == [True, False]


def test_a_prompt_too_long_loses_its_beginning_and_says_so(model: EngineModel) -> None:
    end = "word " * 600
    one, other, short = model.generate([Prompt(text, max_tokens=8) for text in ("Once " + end, end, "Once")])
    assert [answer.truncated for answer in (one, other, short)] == [True, True, False]
    assert one == other


def test_an_answer_ends_with_the_context(model: EngineModel) -> None:
    (long,) = model.generate([Prompt("Once", max_tokens=1000)])
    (short,) = model.generate([Prompt("Once", max_tokens=20)])
    assert long.text.startswith(short.text)


def test_spaces_at_the_end_of_a_context_count_to_the_continuation(tiny_llama: Path) -> None:
    tokenizer = load_tokenizer(tiny_llama)
    assert split_tokens(tokenizer, Continuation("Once upon ", "a time")) == split_tokens(
        tokenizer, Continuation("Once upon", " a time")
    )


def test_a_gguf_is_a_model_too(smollm2_gguf: Path) -> None:
    source = open_source(str(smollm2_gguf), Path.cwd())
    opened = source_model(source, source.digest())
    try:
        wet, dry = opened.score([Continuation("Fire is", " hot"), Continuation("Fire is", " seven")])
    finally:
        opened.close()
    assert wet.logprob > dry.logprob
