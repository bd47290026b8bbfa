"""What a team's own prompts are worth for calibration: the SQL part of `make bench-quality`.

GPTQ in 4 bits, calibrated once with SQL prompts and once with wikitext, beside
the original on questions for databases of neither. Of those, records that share
16 tokens in a row with any calibration text are left out.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from gristmill.calibration.overlap import ngram_overlap
from gristmill.calibration.prompts import PromptSettings, PromptSource, load_calibration
from gristmill.calibration.samples import TokenSamples, samples_digest
from gristmill.pipeline.environment import build_threads, determinism_contract, using_threads
from gristmill.pipeline.model import BuildModel, open_model
from gristmill.pipeline.progress import SilentProgress
from gristmill.pipeline.quantize.run import quantize_key, quantize_model
from gristmill.pipeline.quantize.settings import quantize_settings
from gristmill.pipeline.stages import StageCache
from gristmill.pipeline.validate.compare import compare_engines
from gristmill.pipeline.validate.data import HeldOut
from gristmill.pipeline.validate.logits import ExecutorLogits
from gristmill.pipeline.validate.original import OriginalLogits
from gristmill.pipeline.validate.result import ValidationResult
from gristmill.recipes import Recipe, parse_recipe
from gristmill.runtime.checkpoint import open_checkpoint
from gristmill.runtime.executors.base import KVCacheConfig
from gristmill.runtime.executors.reference.executor import ReferenceExecutor
from gristmill.runtime.formats.write import write_checkpoint
from gristmill.runtime.tokenizer import Tokenizer
from tests.benchmarks.demo_model import ROOT
from tests.benchmarks.table import result_row, table_line

__all__ = ["DOMAIN", "measure_domain"]

DOMAIN = "SQL calibration"
"""What `--only` is held against."""

COMMAND = "make bench-quality ARGS='--only SQL'"
_DATA = Path(os.environ.get("GRISTMILL_TEST_DATA", ROOT.parent / "shared" / "data"))
_CALIBRATION = {"SQL": "prompts/sql.jsonl.gz", "wikitext": "lm/wikitext2_valid_a.txt.gz"}
_QUESTIONS = "sql/spider_dev.jsonl.gz"
_ENDING = "\n\nReturn one SQL query only."
_SAMPLES = 32
_TOKENS = 8192
_LONGEST = 1024


def measure_domain(reference: Path) -> list[dict[str, Any]]:
    """Print KL on unseen SQL by calibration; the row for the JSON file."""
    recipe = parse_recipe(
        f"name: bench\nmodel: {reference}\ncalibration: {{prompts: [{{path: calibration.json}}]}}\n"
        "quantize: {scheme: W4A16_ASYM, group_size: 64, method: gptq}\n",
        DOMAIN,
        reference.parent,
    )
    model = open_model(recipe)
    calibration = {
        name: load_calibration(PromptSettings((PromptSource(_DATA / path),), _SAMPLES), model.tokenizer)
        for name, path in _CALIBRATION.items()
    }
    questions = _unseen(tuple(calibration.values()), model.tokenizer, reference.parent)
    stages = StageCache(reference.parent / "domain-stages")
    with tempfile.TemporaryDirectory(dir=reference.parent) as folder, using_threads(build_threads()):
        for name, samples in calibration.items():
            _quantize(recipe, model, samples, stages, Path(folder) / name)
        results = _compare(model, Path(folder), questions)
    print(f"{len(questions.windows)} questions and answers, {sum(map(len, questions.windows))} tokens")
    print(table_line(("calibrated with", "KL SQL", "95 %"), width=16))
    for name, result in results.items():
        kl, intervals = f"{result.metrics.kl_mean:.4f}", result.intervals
        print(table_line((name, kl, f"{intervals.kl_low:.3f} to {intervals.kl_high:.3f}"), width=16))
    own, other = (results[name].metrics.kl_mean for name in _CALIBRATION)
    metric, peer = "KL of unseen SQL, calibrated with SQL", "calibrated with wikitext"
    return [result_row(metric, own, peer, other, "nats", COMMAND, limit=1.0)]


def _unseen(calibration: Sequence[TokenSamples], tokenizer: Tokenizer, folder: Path) -> HeldOut:
    """A window for each of the first questions, with its answer, that no calibration text touches.

    The sentence that ends every prompt, in calibration too, is left out.
    """
    path = folder / "unseen-sql.jsonl"
    with gzip.open(_DATA / _QUESTIONS, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    prompts = [row["prompt"].removesuffix(_ENDING) for row in rows]
    records = [
        {"messages": [{"role": "user", "content": prompt}], "reference": row["reference"][0]}
        for prompt, row in zip(prompts, rows, strict=True)
    ]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    settings = PromptSettings((PromptSource(path),), len(records), _LONGEST, pack=False, shuffle=False)
    samples = load_calibration(settings, tokenizer)
    seen = [sequence for known in calibration for sequence in known.sequences]
    kept: list[tuple[int, ...]] = []
    for sequence in samples.sequences:
        if sum(map(len, kept)) < _TOKENS and not ngram_overlap(seen, [sequence]):
            kept.append(sequence)
    return HeldOut("SQL", replace(samples, sequences=tuple(kept), digest=samples_digest(kept)))


def _quantize(
    recipe: Recipe, model: BuildModel, samples: TokenSamples, stages: StageCache, folder: Path
) -> None:
    """Write the quantized checkpoint to `folder`; an interrupted benchmark goes on with its `stages`."""
    settings, contract = quantize_settings(recipe, model.schemes), determinism_contract(build_threads())
    key = quantize_key("bench", samples, settings, contract)
    found = quantize_model(model, samples, settings, stages, key, SilentProgress())
    write_checkpoint(folder, model.source, found.tensors, found.dense, "compressed-tensors")


def _compare(model: BuildModel, folder: Path, questions: HeldOut) -> dict[str, ValidationResult]:
    with ExitStack() as stack:
        executors = {
            name: stack.enter_context(
                closing(ReferenceExecutor(open_checkpoint(folder / name), KVCacheConfig(128, 16, "bfloat16")))
            )
            for name in _CALIBRATION
        }
        candidates = {name: ExecutorLogits(executor) for name, executor in executors.items()}
        return compare_engines(OriginalLogits(model.plan, model.source), candidates, [questions])
