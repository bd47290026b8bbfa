"""The memory plan: an upper bound from shapes, held against limits before any work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gristmill.pipeline.model import open_model
from gristmill.pipeline.plan import MemoryPlan, plan_memory, require_memory
from gristmill.pipeline.quantize.settings import quantize_settings
from gristmill.recipes.load import load_recipe
from gristmill.runtime.errors import InputError, OutsideError

BUILD = """
import sys
from pathlib import Path
from gristmill.artifacts.store import Store
from gristmill.pipeline.environment import peak_memory
from gristmill.pipeline.run import build
from gristmill.recipes.load import load_recipe
build(load_recipe(Path(sys.argv[1])), Store(Path(sys.argv[2])))
print(peak_memory())
"""


def test_more_than_the_users_limit_is_refused_with_both_numbers() -> None:
    with pytest.raises(InputError, match=r"--memory; found 1\.00 GB; expected 1\.45 GB"):
        require_memory(MemoryPlan(1_000_000_000, 500_000_000), 1_000_000_000)


def test_more_than_the_machine_has_is_refused() -> None:
    with pytest.raises(OutsideError, match="memory"):
        require_memory(MemoryPlan(10**15, 0), None)


def test_a_build_stays_within_what_was_planned(tmp_path: Path, tiny_llama: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"name: tiny\nmodel: {tiny_llama}\nquantize: {{scheme: W4A16, method: rtn, group_size: 32}}\n"
    )
    loaded = load_recipe(recipe)
    model = open_model(loaded)
    planned = plan_memory(model, quantize_settings(loaded, model.schemes), None, ())
    command = [sys.executable, "-c", BUILD, str(recipe), str(tmp_path / "store")]
    measured = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert measured <= planned.total


WORST_LAYER = """
import json, sys
from pathlib import Path
import numpy as np, torch
from gristmill.calibration.memory import walk_memory
from gristmill.calibration.walk import BlockWalk
from gristmill.pipeline.plan import gptq_work
from gristmill.pipeline.quantize.block import QuantizeSettings, quantize_block
from gristmill.pipeline.quantize.gptq import GptqSettings
from gristmill.runtime.architectures import plan_model
from gristmill.runtime.scheme import QuantScheme

plan = plan_model({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512, "hidden_size": 512,
    "intermediate_size": 2560, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
    "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 512,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
})
(layer,) = plan.layers
shapes = {linear.weight: (linear.out_features, linear.in_features) for linear in layer.linears}

class Source:
    name = "made up"
    def load(self, name):
        return np.random.default_rng(0).standard_normal((512, 512), np.float32)

def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

def quantize(tokens):
    weights = {name: torch.randn(shape).bfloat16() / shape[1] ** 0.5 for name, shape in shapes.items()}
    weights |= {f"{norm.name}.weight": torch.ones(512).bfloat16() for norm in layer.norms}
    schemes = {linear.name: QuantScheme(4, 64, True) for linear in layer.linears}
    settings = QuantizeSettings("gptq", schemes, gptq=GptqSettings(damping=float(sys.argv[1])))
    walk = BlockWalk(plan, Source(), [[token % 512 for token in range(128)]] * (tokens // 128))
    return quantize_block(layer, weights, walk.enter(layer, weights), settings).notes

torch.set_num_threads(2)
torch.manual_seed(0)
quantize(128)  # libraries take what they keep
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
notes = quantize(1024)
stated = walk_memory(plan, 1024, "bfloat16", layer_work=gptq_work)
print(json.dumps({"used": status("VmHWM") - before, "stated": stated, "notes": notes}))
"""


@pytest.mark.parametrize("damping", [0.01, 1e-9], ids=["float32", "retried in float64"])
def test_gptq_of_the_widest_layer_stays_within_what_was_planned(damping: float) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORST_LAYER, str(damping)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "131072"},
    )
    measured = json.loads(done.stdout)
    assert any("float64" in note for note in measured["notes"]) == (damping < 0.01)
    assert measured["used"] <= measured["stated"]
    assert measured["stated"] <= 2.5 * measured["used"], "a bound so loose says nothing"
