"""The quantize stage: what was finished before an interruption is used, and the rest comes out the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.calibration.samples import TokenSamples, samples_digest
from gristmill.pipeline.environment import determinism_contract
from gristmill.pipeline.model import open_model
from gristmill.pipeline.progress import SilentProgress
from gristmill.pipeline.quantize.run import quantize_key, quantize_model
from gristmill.pipeline.quantize.settings import quantize_settings
from gristmill.pipeline.stages import StageCache
from gristmill.recipes import parse_recipe

SEQUENCES = tuple(tuple((11 * row + 5 * column) % 700 for column in range(32)) for row in range(12))
RECIPE = """
name: tiny
model: {model}
calibration: {{prompts: [{{path: prompts.jsonl}}]}}
quantize:
  {scheme}
  method: {method}
"""
W4 = "bits: 4\n  symmetric: true\n  group_size: 32"


class Interrupted(Exception):
    """What the stage is stopped with."""


class StopAfter(SilentProgress):
    """Interrupts after some layers."""

    def __init__(self, layers: int) -> None:
        self._left = layers

    def advance(self, steps: int = 1) -> None:
        self._left -= steps
        if self._left == 0:
            raise Interrupted


def quantize(
    cache: Path, tiny_llama: Path, method: str, progress: SilentProgress | None = None, scheme: str = W4
) -> dict[str, bytes]:
    """Run the stage; the bytes of its layer files."""
    text = RECIPE.format(model=tiny_llama, method=method, scheme=scheme)
    text += "  signround: {iterations: 6}\n" if method == "signround" else ""
    cache.mkdir(exist_ok=True)
    (cache / "prompts.jsonl").touch()
    recipe = parse_recipe(text, "tiny.yaml", cache)
    model = open_model(recipe)
    tokens = sum(map(len, SEQUENCES))
    samples = TokenSamples(SEQUENCES, samples_digest(SEQUENCES), len(SEQUENCES), tokens, frozenset(), ())
    settings = quantize_settings(recipe, model.schemes)
    key = quantize_key("tiny", samples, settings, determinism_contract(1))
    quantize_model(model, samples, settings, StageCache(cache), key, progress or SilentProgress())
    return {path.name: path.read_bytes() for path in sorted(cache.rglob("layer-*.safetensors"))}


@pytest.mark.parametrize(
    ("method", "scheme"),
    [
        ("gptq", W4),
        ("signround", W4),
        ("smoothquant", "scheme: W8A8"),
        ("smoothquant", "scheme: W8A8\n  activations: {static: true, percentile: 99.5}"),
        ("rtn", "scheme: FP8"),
    ],
)
def test_an_interrupted_stage_continues_to_the_bytes_of_an_unbroken_one(
    tmp_path: Path, tiny_llama: Path, method: str, scheme: str
) -> None:
    with pytest.raises(Interrupted):
        quantize(tmp_path / "stopped", tiny_llama, method, StopAfter(2), scheme)
    kept = {path.name for path in (tmp_path / "stopped").rglob("layer-*.safetensors")}
    assert len(kept) == 2
    resumed = quantize(tmp_path / "stopped", tiny_llama, method, scheme=scheme)
    assert resumed == quantize(tmp_path / "unbroken", tiny_llama, method, scheme=scheme)


def test_every_setting_of_inputs_has_a_key_of_its_own(tmp_path: Path, tiny_llama: Path) -> None:
    kinds = ("{static: false}", "{static: true}", "{static: true, percentile: 99.5}")
    for kind in kinds:
        quantize(tmp_path, tiny_llama, "rtn", scheme=f"scheme: W8A8\n  activations: {kind}")
    quantize(tmp_path, tiny_llama, "smoothquant", scheme="scheme: W8A8")
    text = "scheme: W8A8\n  smoothquant: {strengths: 3}"
    quantize(tmp_path, tiny_llama, "smoothquant", scheme=text)
    assert len({path.parent for path in tmp_path.rglob("layer-*.safetensors")}) == len(kinds) + 2
