"""Two real models are compared over windows; windows, chunks and data sets fall where they should."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gristmill.calibration.samples import TokenSamples, samples_digest
from gristmill.pipeline.validate.compare import compare_models
from gristmill.pipeline.validate.data import HeldOut
from gristmill.pipeline.validate.logits import ExecutorLogits, Sequences
from gristmill.recipes.gates import parse_gate
from gristmill.runtime.checkpoint import open_checkpoint
from gristmill.runtime.errors import CheckError, InputError
from gristmill.runtime.executors.base import KVCacheConfig
from gristmill.runtime.executors.reference.executor import ReferenceExecutor
from tests.listener import Listener

Array = NDArray[np.float32]


def executor(folder: Path, num_blocks: int = 64) -> ReferenceExecutor:
    cache = KVCacheConfig(num_blocks, 16, "float32")
    return ReferenceExecutor(open_checkpoint(folder), cache, "float32")


def samples(*sequences: tuple[int, ...]) -> TokenSamples:
    tokens = sum(map(len, sequences))
    return TokenSamples(sequences, samples_digest(sequences), len(sequences), tokens, frozenset(), ())


def held_out(name: str, windows: int, tokens: int, seed: int = 0) -> HeldOut:
    ids = np.random.default_rng(seed).integers(0, 1000, size=(windows, tokens))
    return HeldOut(name, samples(*(tuple(row) for row in ids.tolist())))


class Table:
    """Logits looked up by token and position, with a chosen offset: a model small enough to reason about."""

    def __init__(self, vocab: int, offset: float = 0.0) -> None:
        self.vocab = vocab
        self.offset = offset

    def row(self, token: int, position: int) -> Array:
        spread = np.arange(self.vocab, dtype=np.float32)
        row: Array = np.cos(spread * (token + 1) + position / 7 + self.offset).astype(np.float32)
        return row

    def logits(self, sequences: Sequences, rows: int) -> Iterator[Array]:
        for sequence in sequences:
            for start in range(0, len(sequence), rows):
                chunk = sequence[start : start + rows]
                yield np.stack([self.row(token, start + index) for index, token in enumerate(chunk)])


def test_a_model_compared_with_itself_loses_nothing(tiny_llama: Path) -> None:
    model = executor(tiny_llama)
    result = compare_models(ExecutorLogits(model), ExecutorLogits(model), [held_out("a", 3, 40)])
    assert result.metrics.kl_mean == 0.0
    assert result.metrics.top1_agreement == 1.0
    assert result.metrics.perplexity_increase == 0.0


def test_metrics_are_those_of_transformers_logits(tiny_llama: Path, tiny_llama_untied: Path) -> None:
    data = held_out("a", 2, 50)
    log_p, log_q = (transformers_log_probabilities(path, data) for path in (tiny_llama, tiny_llama_untied))
    following = torch.tensor([window[1:] for window in data.windows])[..., None]
    loss = -log_q[:, :-1].gather(-1, following)
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)
    original, other = ExecutorLogits(executor(tiny_llama)), ExecutorLogits(executor(tiny_llama_untied))
    metrics = compare_models(original, other, [data]).metrics
    assert metrics.perplexity == pytest.approx(float(loss.mean().exp()), rel=1e-4)
    assert metrics.kl_mean == pytest.approx(float(kl.mean()), rel=1e-4)
    assert metrics.kl_p99 == pytest.approx(float(kl.flatten().quantile(0.99)), rel=1e-4)
    assert metrics.top1_agreement == float((log_p.argmax(-1) == log_q.argmax(-1)).float().mean())


def transformers_log_probabilities(folder: Path, data: HeldOut) -> torch.Tensor:
    from transformers import LlamaForCausalLM

    oracle = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return torch.log_softmax(oracle(torch.tensor(data.windows)).logits.double(), dim=-1)


def test_windows_longer_than_a_chunk_are_compared_at_the_right_positions() -> None:
    base, candidate = Table(11), Table(11, offset=0.3)
    data = held_out("a", 1, 1100)
    data = HeldOut("a", samples(tuple(token % 11 for token in data.windows[0])))
    metrics = compare_models(base, candidate, [data]).metrics
    losses = []
    for position, (token, following) in enumerate(zip(data.windows[0], data.windows[0][1:], strict=False)):
        row = candidate.row(token, position).astype(np.float64)
        losses.append(math.log(np.exp(row).sum()) - row[following])
    assert metrics.positions == 1100
    assert metrics.perplexity == pytest.approx(math.exp(np.mean(losses)), rel=1e-5)


def test_each_data_set_has_its_row_and_all_count_by_their_tokens() -> None:
    base, candidate = Table(1000), Table(1000, offset=0.1)
    first, second = held_out("first", 1, 30), held_out("second", 3, 30, seed=1)
    both = compare_models(base, candidate, [first, second])
    alone = compare_models(base, candidate, [second])
    assert [row.name for row in both.data] == ["first", "second"]
    assert both.data[1].metrics == alone.metrics
    weighted = (both.data[0].metrics.kl_mean + 3 * both.data[1].metrics.kl_mean) / 4
    assert both.metrics.kl_mean == pytest.approx(weighted)


def test_overlap_is_reported_for_each_data_set_and_over_all() -> None:
    model = Table(1000)
    first, second = held_out("first", 1, 30), held_out("second", 1, 90, seed=1)
    result = compare_models(model, model, [first, second], calibration=samples(first.windows[0][:20]))
    assert [row.overlap for row in result.data] == [20 / 30, 0.0]
    assert result.overlap == 20 / 120


def test_progress_adds_up_to_all_tokens_behind_the_first_logits() -> None:
    listener = Listener()

    class Slow(Table):
        def logits(self, sequences: Sequences, rows: int) -> Iterator[Array]:
            listener.heard.append("the original")
            yield from super().logits(sequences, rows)

    data = [HeldOut("a", samples((1,) * 700, (2,) * 30))]
    compare_models(Slow(50), Table(50), data, progress=listener)
    assert listener.heard == ["the original", "validate: 730 tokens", "+512", "+188", "+30"]


def test_the_json_form_is_the_contract() -> None:
    gates = [parse_gate("kl_mean", "< 1e-9"), parse_gate("top1_agreement", "> 0.1")]
    result = compare_models(
        Table(20), Table(20, offset=0.2), [HeldOut("a", samples(tuple(range(20))))], gates=gates
    )
    form = result.to_dict()
    assert {"perplexity", "kl", "top1_agreement", "tasks", "calibration_overlap"} <= form.keys()
    assert form["perplexity"].keys() == {"base", "quantized"}
    assert form["kl"].keys() == {"mean", "p99"}
    assert [gate["passed"] for gate in form["gates"]] == [False, True]
    assert result.passed is False


def test_a_position_that_breaks_is_named_with_its_window() -> None:
    class Broken(Table):
        def row(self, token: int, position: int) -> Array:
            row = super().row(token, position)
            return np.full_like(row, math.nan) if (token, position) == (7, 600) else row

    windows = samples((1,) * 700, (1,) * 600 + (7,) * 100)
    with pytest.raises(CheckError, match="quantized model at position 600 of chats, window 1"):
        compare_models(Table(8), Broken(8), [HeldOut("chats", windows)])


def test_a_window_longer_than_the_cache_is_refused(tiny_llama: Path) -> None:
    model = ExecutorLogits(executor(tiny_llama, num_blocks=2))
    with pytest.raises(InputError, match="found 33 tokens; expected at most the 32 tokens"):
        compare_models(model, model, [held_out("a", 1, 33)])
