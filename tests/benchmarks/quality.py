"""Quantization quality and time beside the peers' table: `make bench-quality`.

Every row quantizes the demo model with the product's own functions, on the
tokens that the peers were calibrated with, and measures the written checkpoint
twice: by the product's own validation and by an independent script that uses
transformers. Prints one table and puts its rows into build/bench/quality.json,
or quality-off-grid.json, where rows that were not measured again stay.

    --quick      two rows on fewer tokens, within a minute; no independent measure
    --off-grid   the same model with noise of half a step of the 4-bit grid that
                 its weights came from; the peers' numbers are not of this model
    --own        no independent measure, which takes half of the measuring time
    --only NAME  rows whose name contains NAME, with the uniform models that mixed ones are compared with;
                 those of the cache of keys and values begin with KV, that of calibration by domain with SQL
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from gristmill.calibration.prompts import PromptSettings, PromptSource, load_calibration
from gristmill.calibration.samples import TokenSamples
from gristmill.pipeline.environment import (
    build_threads,
    determinism_contract,
    peak_memory,
    using_threads,
)
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
from tests.benchmarks.quality_report import HEADER, Measured, keep_row, table_rows
from tests.benchmarks.quality_rows import QUICK_ROWS, ROWS, Row
from tests.benchmarks.table import table_line, write_rows

GRID = 32
"""Width of the source's 4-bit groups."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The peers' tokens, made by the measure's own script."""

    calibration: TokenSamples
    wiki: HeldOut
    chat: HeldOut


def main() -> None:
    """Run the benchmark as asked."""
    options = _options()
    folder = BUILD / ("quality-off-grid" if options.off_grid else "quality")
    folder.mkdir(parents=True, exist_ok=True)
    reference = _reference(folder, off_grid=options.off_grid)
    tokens = _tokens(folder, reference, quick=options.quick)
    rows = _rows(options)
    caches = [cache for cache in CACHES if options.only in cache.name and not options.quick]
    if caches:
        data = [tokens.wiki, tokens.chat]
        write_rows(BUILD / "quality_kv.json", measure_caches(caches, reference, tokens.calibration, data))
    if options.only in DOMAIN and not options.quick:
        write_rows(BUILD / "quality_domain.json", measure_domain(reference))
    if not rows:
        return
    independent = not options.quick and not options.own
    if independent:
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
            measured.append(_measure(row, reference, tokens, independent=independent))
            print("\n".join(table_line(cells) for cells in table_rows(measured[-1])), flush=True)
            if not options.quick:
                keep_row(folder.with_suffix(".json"), measured[-1])
    _print_comparisons(measured)


def _rows(options: argparse.Namespace) -> list[Row]:
    """The rows that are asked for; the peers did not measure the model off its grid."""
    asked = [row for row in ROWS if options.only in row.name]
    curves = {row.curve for row in asked if row.is_mixed}
    rows = [row for row in ROWS if row in asked or (row.curve in curves and not row.is_mixed)]
    if options.quick:
        rows = [row for row in rows if row.name in QUICK_ROWS]
    return [replace(row, peer=None) for row in rows] if options.off_grid else rows


def _print_comparisons(measured: Sequence[Measured]) -> None:
    points = [_point(row) for row in measured]
    for line in mixed_lines([point for point in points if point.curve]):
        print(line)
    for line in gain_lines([point for point in points if point.name.startswith("3 bits")]):
        print(line)
    chat, wiki = (f"{100 * data.overlap:.0f}%" for data in (measured[0].chat, measured[0].wiki))
    print(f"\n{chat} of the chat tokens and {wiki} of the wikitext lie in a 16-gram of the calibration")
    print("text. The peers' figures are read from their table.")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--off-grid", action="store_true")
    parser.add_argument("--own", action="store_true")
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
    calibration = "calibration: {prompts: [{path: calibration.json}]}\n" if row.needs_data else ""
    text = f"name: bench\nmodel: {reference}\n{calibration}quantize: {{{row.quantize}}}\n"
    return parse_recipe(text, row.name, reference.parent)


def _measure(row: Row, reference: Path, tokens: Tokens, *, independent: bool) -> Measured:
    recipe = _recipe(row, reference)
    original = open_model(recipe)
    model = original.rotated() if recipe.quantize.rotate else original
    with tempfile.TemporaryDirectory(dir=reference.parent) as name:
        folder = Path(name)
        _forget_peak_memory()
        start, cpu_start = time.perf_counter(), time.process_time()
        model, quantized = _quantize(recipe, model, tokens, folder)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        memory = peak_memory()
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
    return Measured(row, seconds, cpu_seconds, memory, stored / max(weights, 1), wiki, chat, other)


def _forget_peak_memory() -> None:
    """Let `peak_memory` count from now on, so that a row does not show an earlier one's."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


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
    return Point(found.row.name, found.row.curve, not found.row.is_mixed, found.bits, kl)


if __name__ == "__main__":
    main()
