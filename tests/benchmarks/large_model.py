"""A model larger than the memory it is quantized in: `make bench-memory`.

Writes a random Llama of 3 GB in bfloat16 layer by layer, then builds it by the
command line with GPTQ and `--memory 2GiB`, under a limit of 2 GiB. Prints one
line and writes build/bench/memory.json. The model stays for the next run.

    --layers N   fewer layers, for a quick look
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from gristmill.runtime.architectures import plan_model
from gristmill.runtime.safetensors_writer import TensorSpec, write_safetensors
from gristmill.runtime.sources.base import Tensor
from gristmill.runtime.sources.open import open_source
from tests.benchmarks.demo_model import BUILD, MODEL, ROOT
from tests.benchmarks.table import result_row, write_rows
from tests.limited_memory import Limited, run_limited

__all__ = ["build_limited", "random_llama"]

LIMIT = 2 << 30
_TIMEOUT_S = 7200.0
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def main() -> None:
    """Run the benchmark as asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layers", type=int, default=24)
    layers = parser.parse_args().layers
    folder = random_llama(BUILD / f"random-llama-{layers}", layers=layers, hidden=2048, intermediate=6784)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=BUILD) as work:
        done = build_limited(folder, Path(work), LIMIT)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"the build ended with {done.returncode}:\n{done.errors}")
    how = "in a control group of" if done.in_group else "watched for"
    print(done.errors)
    print(f"{size / 1e9:.2f} GB quantized in {seconds:.0f} s, {how} {LIMIT / 1e9:.2f} GB;", end=" ")
    print(f"{done.resident / 1e9:.2f} GB seen at most")
    if layers == 24:
        row = result_row("memory", done.resident / 1e9, "limit", LIMIT / 1e9, "GB", "make bench-memory", 1.0)
        write_rows(BUILD / "memory.json", [row])


def random_llama(folder: Path, *, layers: int, hidden: int, intermediate: int) -> Path:
    """A Llama with random weights and the demo model's tokenizer, one tensor in memory at a time."""
    if (folder / "config.json").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    demo = open_source(MODEL, ROOT)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": demo.config["vocab_size"],
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    shapes = plan_model(config).tensor_shapes()
    specs = {name: TensorSpec(_BFLOAT16, shape) for name, shape in shapes.items()}
    write_safetensors(folder / "model.safetensors", specs, _random_tensors(shapes))
    for name, data in demo.side_files().items():
        (folder / name).write_bytes(data)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _random_tensors(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, Tensor]]:
    """Weights that keep the size of what passes through them; norms of one."""
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        if len(shape) == 1:
            yield name, np.ones(shape, _BFLOAT16)
        else:
            yield name, (random.standard_normal(shape, np.float32) / shape[1] ** 0.5).astype(_BFLOAT16)


def build_limited(model: Path, folder: Path, limit: int, *, tokens: int = 1024) -> Limited:
    """`gristmill build` of `model` by GPTQ from random tokens, in `limit` bytes of memory."""
    random = np.random.default_rng(0)
    for name, count in (("calibration", tokens), ("heldout", tokens // 4)):
        rows = random.integers(10, 1000, (count // 128, 128)).tolist()
        (folder / f"{name}.json").write_text(json.dumps(rows))
    recipe: dict[str, Any] = {
        "name": "large",
        "model": str(model),
        "calibration": {
            "prompts": [{"path": "calibration.json"}],
            "samples": tokens // 128,
            "max_tokens": 128,
        },
        "quantize": {"scheme": "W4A16", "method": "gptq", "group_size": 64},
        "validate": {"data": [{"path": "heldout.json", "window": 128, "tokens": tokens // 4}]},
        "golden": {"count": 1},
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    command = [sys.executable, "-m", "gristmill.cli.app", "build", path]
    options = ["--memory", str(limit), "--store", folder / "store"]
    return run_limited([*command, *options], limit, _TIMEOUT_S)


if __name__ == "__main__":
    main()
