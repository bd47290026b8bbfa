"""lm-evaluation-harness by local-completions: its log likelihoods are our own engine's numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

import gristmill
from gristmill.facade import engine_folder
from gristmill.pipeline.validate.tasks.catalogue import TASKS
from gristmill.pipeline.validate.tasks.open_model import engine_model
from gristmill.pipeline.validate.tasks.rows import find_data, read_rows
from gristmill.runtime.tokenizer import load_tokenizer
from tests.clients.conftest import RunClient
from tests.command_line import CommandLine
from tests.served import RunningServer

QUESTIONS = [f"The miller has {count} sacks of" for count in range(4)]
CHOICES = ["flour", "stones and water", "bread"]


def _write_task(
    folder: Path, name: str, rows: Sequence[Mapping[str, Any]], text: str, metrics: Sequence[str]
) -> None:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "rows.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": text,
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "answer",
        "metric_list": [
            {"metric": name, "aggregation": "mean", "higher_is_better": True} for name in metrics
        ],
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(task))


def _run_harness(
    server: RunningServer, run_client: RunClient, folder: Path, task: str
) -> list[dict[str, Any]]:
    """What the harness logs of each item of a task in `folder`."""
    model = {
        "model": "tiny",
        "base_url": f"{server.url}/v1/completions",
        "num_concurrent": 4,
        "tokenized_requests": True,
        "tokenizer_backend": "huggingface",
        "tokenizer": server.tokenizer,
        "max_length": 512,
    }
    run_client(
        "lm-eval",
        "lm_eval",
        [
            *("--model", "local-completions", "--tasks", task, "--include_path", folder),
            *("--model_args", ",".join(f"{key}={value}" for key, value in model.items())),
            *("--output_path", folder / "out", "--log_samples"),
        ],
    )
    (samples,) = (folder / "out").rglob(f"samples_{task}_*.jsonl")
    return [json.loads(line) for line in samples.read_text().splitlines()]


def _own_scores(built: CommandLine, tokenizer_folder: Path) -> dict[tuple[str, str], float]:
    """The sum of the log probabilities of each choice after each question, by the engine itself."""
    tokenizer = load_tokenizer(tokenizer_folder)
    pairs = [(question, choice) for question in QUESTIONS for choice in CHOICES]
    prompts = [
        tokenizer.encode(f"{question} {choice}", add_special_tokens=False) for question, choice in pairs
    ]
    params = gristmill.SamplingParams(max_tokens=0, prompt_logprobs=0)
    with gristmill.LLM("tiny", store=built.store) as llm:
        outputs = llm.generate(prompts, params)
    scores: dict[tuple[str, str], float] = {}
    for (question, choice), output in zip(pairs, outputs, strict=True):
        begin = len(tokenizer.encode(question, add_special_tokens=False))
        entries = (output.prompt_logprobs or ())[begin:]
        scores[question, choice] = sum(entry.logprob for entry in entries if entry is not None)
    return scores


@pytest.mark.timeout(900)
def test_log_likelihoods_are_the_engine_s_own(
    built: CommandLine, server: RunningServer, run_client: RunClient, tmp_path: Path
) -> None:
    items = [{"question": question, "choices": CHOICES, "answer": 0} for question in QUESTIONS]
    _write_task(tmp_path, "sacks", items, "{{question}}", ["acc"])
    rows = _run_harness(server, run_client, tmp_path, "sacks")
    found = {
        (row["doc"]["question"], choice): float(score)
        for row in rows
        for choice, (score, _) in zip(CHOICES, row["filtered_resps"], strict=True)
    }
    assert found == pytest.approx(_own_scores(built, server.tokenizer), abs=1e-4)


@pytest.mark.timeout(900)
def test_our_multiple_choice_is_the_harness_s_item_by_item(
    built: CommandLine, server: RunningServer, run_client: RunClient, data_dir: Path, tmp_path: Path
) -> None:
    """The same items of ARC, by the harness over HTTP and by our own task in this process."""
    task = TASKS["arc_easy"]
    rows = read_rows(task, find_data(task, data_dir), 25)
    _write_task(tmp_path, "arc_like", rows, "Question: {{question}}\nAnswer:", ["acc", "acc_norm"])
    theirs = _run_harness(server, run_client, tmp_path, "arc_like")
    with closing(engine_model(engine_folder("tiny", store=built.store))) as model:
        ours = task.measure(model, rows)
    found = {row["doc"]["id"]: {"acc": row["acc"], "acc_norm": row["acc_norm"]} for row in theirs}
    assert found == {row["id"]: dict(each.values) for row, each in zip(rows, ours, strict=True)}
