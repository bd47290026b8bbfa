"""Quantization quality and time beside the peers' table: `make bench-quality`.

Every row quantizes the demo model with the product's own functions, on the
tokens that the peers were calibrated with, and measures the written checkpoint
twice: by the product's own validation and by an independent script that uses
transformers. Prints one table and writes build/bench/quality.json.

    --quick      two rows on fewer tokens, within a minute; no independent measure
    --off-grid   the same model with noise of half a step of the 4-bit grid that
                 its weights came from; the peers' numbers are not of this model
    --only NAME  rows whose name contains NAME; those of the cache of keys and values begin with KV,
                 that of calibration by domain with SQL
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gristmill.calibration.prompts import PromptSettings, PromptSource, load_calibration
from gristmill.calibration.samples import TokenSamples
from gristmill.pipeline.environment import build_threads, determinism_contract, using_threads
from gristmill.pipeline.make import Maker
from gristmill.pipeline.model import BuildModel, open_model, stored_bits
from gristmill.pipeline.progress import SilentProgress
from gristmill.pipeline.quantize.run import QuantizedModel, quantize_key, quantize_model
from gristmill.pipeline.quantize.settings import quantize_settings
from gristmill.pipeline.search.run import search
from gristmill.pipeline.stages import StageCache
from gristmill.pipeline.validate.compare import compare_models
from gristmill.pipeline.validate.data import HeldOut
from gristmill.pipeline.validate.logits import ExecutorLogits
from gristmill.pipeline.validate.original import OriginalLogits
from gristmill.pipeline.validate.result import DataResult
from gristmill.recipes import Recipe, parse_recipe
from gristmill.runtime.checkpoint import open_checkpoint
from gristmill.runtime.executors.base import KVCacheConfig
from gristmill.runtime.executors.reference.executor import ReferenceExecutor
from gristmill.runtime.executors.reference.weights import load_weights
from gristmill.runtime.formats.write import write_checkpoint
from gristmill.runtime.sources.base import ModelSource, Tensor
from tests.benchmarks.curve import Point, gain_lines, mixed_lines
from tests.benchmarks.demo_model import BUILD, MODEL, write_original
from tests.benchmarks.independent import TOOLS, evaluate, make_reference_logits, run_script
from tests.benchmarks.quality_domain import DOMAIN, measure_domain
from tests.benchmarks.quality_kv import CACHES, measure_caches
from tests.benchmarks.quality_rows import QUICK_ROWS, ROWS, Peer, Row
from tests.benchmarks.table import result_row, table_line, write_rows

COMMAND = "make bench-quality"
GRID = 32
"""Width of the source's 4-bit groups."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The peers' tokens, made by the measure's own script."""

    calibration: TokenSamples
    wiki: HeldOut
    chat: HeldOut


@dataclass(frozen=True, slots=True)
class Measured:
    """What one row came to; `independent` is the other script's result.

    `cpu_seconds` over all threads tells a slow row from a busy machine; `bits` are those stored for a
    quantized weight.
    """

    row: Row
    seconds: float
    cpu_seconds: float
    bits: float
    wiki: DataResult
    chat: DataResult
    independent: Mapping[str, float] | None


def main() -> None:
    """Run the benchmark as asked."""
    options = _options()
    folder = BUILD / ("quality-off-grid" if options.off_grid else "quality")
    folder.mkdir(parents=True, exist_ok=True)
    reference = _reference(folder, off_grid=options.off_grid)
    tokens = _tokens(folder, reference, quick=options.quick)
    rows = [row for row in ROWS if not options.quick or row.name in QUICK_ROWS]
    rows = [row for row in rows if options.only in row.name]
    caches = [cache for cache in CACHES if options.only in cache.name and not options.quick]
    if caches:
        data = [tokens.wiki, tokens.chat]
        write_rows(BUILD / "quality_kv.json", measure_caches(caches, reference, tokens.calibration, data))
    if options.only in DOMAIN and not options.quick:
        write_rows(BUILD / "quality_domain.json", measure_domain(reference))
    if not rows:
        return
    if not options.quick:
        make_reference_logits(reference)
    print(f"{MODEL}{' off its grid' if options.off_grid else ''}, group 64, {build_threads()} threads,")
    print(f"{len(tokens.calibration.sequences)} x 512 calibration tokens, the peers' splits")
    if options.quick:
        print("(cut short by --quick: not to be compared with the peers' figures)")
    print()
    print(table_line(HEADER))
    measured = []
    with using_threads(build_threads()):
        for row in rows:
            measured.append(_measure(row, reference, tokens, independent=not options.quick))
            print("\n".join(table_line(cells) for cells in _table_rows(measured[-1])), flush=True)
    points = [_point(row) for row in measured]
    for line in mixed_lines([point for point in points if point.name.startswith("Mixed")]):
        print(line)
    for line in gain_lines([point for point in points if point.name.startswith("3 bits")]):
        print(line)
    chat, wiki = (f"{100 * data.overlap:.0f}%" for data in (measured[0].chat, measured[0].wiki))
    print(f"\n{chat} of the chat tokens and {wiki} of the wikitext lie in a 16-gram of the calibration")
    print("text. The peers' figures are read from their table.")
    if not options.quick and not options.off_grid:
        rows_out = [entry for result in measured for entry in _json_rows(result)]
        write_rows(BUILD / "quality.json", rows_out)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--off-grid", action="store_true")
    parser.add_argument("--only", default="", metavar="NAME")
    return parser.parse_args()


def _reference(folder: Path, *, off_grid: bool) -> Path:
    """The original as a plain bfloat16 Hugging Face folder, which both measures read."""
    return write_original(folder / "reference", _off_grid if off_grid else None)


def _off_grid(source: ModelSource) -> dict[str, Tensor]:
    """Every matrix with uniform noise of up to half a grid step either way."""
    random = np.random.default_rng(0)
    changed: dict[str, Tensor] = {}
    for name, shape in source.tensor_shapes().items():
        if len(shape) == 2:
            weight = source.load(name)
            groups = weight.astype(np.float32).reshape(shape[0], -1, GRID)
            step = (groups.max(-1, keepdims=True) - groups.min(-1, keepdims=True)) / 15
            noisy = groups + step * random.uniform(-0.5, 0.5, groups.shape).astype(np.float32)
            changed[name] = noisy.reshape(shape).astype(weight.dtype)
    return changed


def _tokens(folder: Path, reference: Path, *, quick: bool) -> Tokens:
    script = (
        "import json, sys; sys.path.insert(0, sys.argv[1])\n"
        "from q_data import *; from transformers import AutoTokenizer\n"
        "tok = AutoTokenizer.from_pretrained(sys.argv[2]); split = chats(tok)\n"
        "rows = {'calibration': pack(tok, split['calib'], 64, 512),\n"
        "        'chat': pack(tok, split['eval'], 16, 512),\n"
        "        'wiki': wiki(tok, 'wikitext2_test', 8192).view(4, 2048)}\n"
        "for name, value in rows.items():\n"
        "    json.dump(value.tolist(), open(f'{sys.argv[3]}/{name}.json', 'w'))\n"
    )
    names = ("calibration", "chat", "wiki")
    if not all((folder / f"{name}.json").exists() for name in names):
        run_script([sys.executable, "-c", script, str(TOOLS), str(reference), str(folder)], folder)
    tokenizer = open_model(_recipe(ROWS[0], reference)).tokenizer
    kept = {"calibration": 8, "chat": 4, "wiki": 1} if quick else {"calibration": 64, "chat": 16, "wiki": 4}
    samples = {
        name: load_calibration(
            PromptSettings(
                (PromptSource(folder / f"{name}.json"),),
                samples=kept[name],
                max_tokens=2048,
                shuffle=False,
            ),
            tokenizer,
        )
        for name in names
    }
    held_out = {name: HeldOut(name, samples[name]) for name in ("wiki", "chat")}
    return Tokens(samples["calibration"], held_out["wiki"], held_out["chat"])


def _recipe(row: Row, reference: Path) -> Recipe:
    """The row's settings as a recipe; its prompts are handed over as tokens."""
    calibration = (
        "" if row.method in ("rtn", "hqq") else "calibration: {prompts: [{path: calibration.json}]}\n"
    )
    text = f"name: bench\nmodel: {reference}\n{calibration}quantize: {{{row.quantize}}}\n"
    return parse_recipe(text, row.name, reference.parent)


def _measure(row: Row, reference: Path, tokens: Tokens, *, independent: bool) -> Measured:
    recipe = _recipe(row, reference)
    original = open_model(recipe)
    model = original.rotated() if recipe.quantize.rotate else original
    with tempfile.TemporaryDirectory(dir=reference.parent) as name:
        folder = Path(name)
        start, cpu_start = time.perf_counter(), time.process_time()
        model, quantized = _quantize(recipe, model, tokens, folder)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        checkpoint = folder / "checkpoint"
        write_checkpoint(checkpoint, model.source, quantized.tensors, quantized.dense, "compressed-tensors")
        opened = open_checkpoint(checkpoint)
        executor = ReferenceExecutor(opened, KVCacheConfig(128, 16, "bfloat16"))
        result = compare_models(
            OriginalLogits(original.plan, original.source),
            ExecutorLogits(executor),
            [tokens.wiki, tokens.chat],
            calibration=tokens.calibration,
        )
        executor.close()
        other = None
        if independent:
            if row.scheme is None and not recipe.quantize.rotate:
                torch.save(load_weights(opened, torch.bfloat16), folder / "weights.pt")
                other = evaluate(reference, ["--sd", str(folder / "weights.pt")])
            else:  # with quantized inputs or a head of its own: transformers loads the checkpoint itself
                other = evaluate(reference, [], checkpoint)
    wiki, chat = result.data
    stored, weights = stored_bits(model.plan.linears, model.schemes)
    return Measured(row, seconds, cpu_seconds, stored / max(weights, 1), wiki, chat, other)


def _quantize(
    recipe: Recipe, model: BuildModel, tokens: Tokens, folder: Path
) -> tuple[BuildModel, QuantizedModel]:
    """The model quantized, at the widths that a search chooses if the recipe has one."""
    samples = None if recipe.calibration is None else tokens.calibration
    contract, stages = determinism_contract(build_threads()), StageCache(folder)
    if recipe.quantize.search is not None:
        maker = Maker(recipe, model, samples, (), (), contract, stages, SilentProgress())
        model, _ = search(maker, model)
    settings = quantize_settings(recipe, model.schemes)
    key = quantize_key("bench", samples, settings, contract)
    return model, quantize_model(model, samples, settings, stages, key, SilentProgress())


def _point(found: Measured) -> Point:
    """A row by the independent measure where it was taken."""
    kl = (found.independent or {}).get("kl_wiki", found.wiki.metrics.kl_mean)
    return Point(found.row.name, found.row.bits % 1 == 0, found.bits, kl)


HEADER = ("", "KL wiki", "KL chat", "ppl wiki", "top-1 wiki", "top-1", "seconds", "CPU seconds")


def _table_rows(measured: Measured) -> list[tuple[str, ...]]:
    """Ours by both measures, the peer, and the ratios that have limits."""
    row, peer, other = measured.row, measured.row.peer, measured.independent
    wiki, chat = measured.wiki.metrics, measured.chat.metrics
    ours = (wiki.kl_mean, chat.kl_mean, wiki.perplexity, wiki.top1_agreement, _top1(measured))
    table = [(row.name, *_numbers(*ours), f"{measured.seconds:.1f}", f"{measured.cpu_seconds:.1f}")]
    if other is not None:
        values = (other["kl_wiki"], other["kl_chat"], other["ppl"], None, other["top1"])
        table.append(("  independent measure", *_numbers(*values), ""))
    if peer is None:
        return table
    table.append(
        (
            f"  {peer.tool}",
            *_numbers(peer.kl_wiki, peer.kl_chat, peer.perplexity, None, peer.top1),
            f"{peer.seconds:.2f}" if peer.seconds < 1 else f"{peer.seconds:.0f}",
        )
    )
    if other is not None:
        kl, seconds = other["kl_wiki"] / peer.kl_wiki, measured.seconds / peer.seconds
        limits = ["" if limit is None else f"<= {limit:.2f}" for limit in (row.kl_limit, row.time_limit)]
        table.append(("  ratio", f"{kl:.2f} {limits[0]}", "", "", "", "", f"{seconds:.2f} {limits[1]}"))
    return table


def _top1(measured: Measured) -> float:
    wiki, chat = measured.wiki.metrics, measured.chat.metrics
    weighted = wiki.top1_agreement * wiki.positions + chat.top1_agreement * chat.positions
    return weighted / (wiki.positions + chat.positions)


def _numbers(*values: float | None) -> tuple[str, ...]:
    return tuple("" if value is None else f"{value:.2f}" if value > 2 else f"{value:.4f}" for value in values)


def _json_rows(measured: Measured) -> list[dict[str, Any]]:
    row = measured.row
    peer = row.peer or Peer("", math.nan, math.nan, math.nan, math.nan, math.nan)
    other = measured.independent or {}

    def entry(
        metric: str, ours: float, value: float | None, unit: str, limit: float | None = None
    ) -> dict[str, Any]:
        known = None if row.peer is None else value
        return result_row(
            f"{row.name}: {metric}", ours, peer.tool, known, unit, COMMAND, limit if known else None
        )

    return [
        entry("KL wiki, independent measure", other["kl_wiki"], peer.kl_wiki, "nats", row.kl_limit),
        entry("KL wiki, own validation", measured.wiki.metrics.kl_mean, peer.kl_wiki, "nats"),
        entry("KL chat, independent measure", other["kl_chat"], peer.kl_chat, "nats"),
        entry("KL chat, own validation", measured.chat.metrics.kl_mean, peer.kl_chat, "nats"),
        entry("perplexity wiki, independent measure", other["ppl"], peer.perplexity, ""),
        entry("perplexity wiki, own validation", measured.wiki.metrics.perplexity, peer.perplexity, ""),
        entry("top-1, independent measure", other["top1"], peer.top1, "share"),
        entry("top-1, own validation", _top1(measured), peer.top1, "share"),
        entry("chat tokens in 16-grams of calibration", measured.chat.overlap, None, "share"),
        entry("wall time", measured.seconds, peer.seconds, "s", row.time_limit),
    ]


if __name__ == "__main__":
    main()
