"""A rotated model says what the original says, and what it says it with is easier to round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gristmill.pipeline.model import open_model
from gristmill.pipeline.prepare.rotate import RotatedSource, orthogonal_matrix
from gristmill.pipeline.validate.original import OriginalLogits
from gristmill.recipes.load import load_recipe
from gristmill.runtime.architectures import plan_model
from gristmill.runtime.formats.write import write_checkpoint
from gristmill.runtime.sources.hf_folder import HfFolder
from tests.command_line import CommandLine
from tests.tiny_checkpoints import write_random

BASE: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "dtype": "float32",
    "vocab_size": 50,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
MODELS: dict[str, dict[str, Any]] = {
    "tied": {},
    "with a head": {"tie_word_embeddings": False},
    "with biases": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
    "with experts": {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 3,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
    },
}
TOKENS = [list(range(3, 40)), [5, 6]]


def logits(source: Any) -> np.ndarray[Any, Any]:
    return np.concatenate(
        list(OriginalLogits(plan_model(source.config), source, "float32").logits(TOKENS, rows=64))
    )


@pytest.mark.parametrize("size", [1, 2, 9, 64, 48, 576])
def test_the_matrix_is_orthogonal_and_mixes_every_channel_into_every_other(size: int) -> None:
    matrix = orthogonal_matrix(size).double()
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(size).double(), atol=1e-6, rtol=0)
    if size in (2, 64):  # a Hadamard matrix: all entries are of one size
        assert torch.allclose(matrix.abs(), torch.full_like(matrix, size**-0.5))


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)
def test_a_rotated_model_gives_the_same_logits(tmp_path: Path, changes: dict[str, Any]) -> None:
    source = HfFolder(write_random(tmp_path / "model", {**BASE, **changes}, deviation=0.2))
    np.testing.assert_allclose(logits(RotatedSource(source)), logits(source), atol=2e-4)


def test_a_rotated_checkpoint_gives_the_same_logits_in_transformers(tmp_path: Path, tiny_llama: Path) -> None:
    from transformers import LlamaForCausalLM

    write_checkpoint(tmp_path / "rotated", RotatedSource(HfFolder(tiny_llama)), {}, {}, "compressed-tensors")
    models = [
        LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for folder in (tiny_llama, tmp_path / "rotated")
    ]
    assert models[1].lm_head.weight is not models[1].model.embed_tokens.weight
    with torch.inference_mode():
        wanted, found = (model(torch.tensor([TOKENS[0]])).logits.log_softmax(-1) for model in models)
    assert float((wanted.exp() * (wanted - found)).sum(-1).max()) < 2e-3  # weights were rounded to bfloat16


def test_rotation_spreads_an_outlier_channel_over_all(tmp_path: Path) -> None:
    source = HfFolder(write_random(tmp_path / "model", BASE, deviation=0.2))
    name = "model.layers.0.self_attn.q_proj.weight"
    before = source.load(name).astype(np.float32)
    scale = np.ones(48, np.float32)
    scale[7] = 30

    class Outlier:
        def __getattr__(self, attribute: str) -> Any:
            return getattr(source, attribute)

        def load(self, wanted: str) -> Any:
            return before * scale if wanted == name else source.load(wanted)

    def peak(weight: Any) -> float:
        return float(np.abs(weight).max() / np.sqrt(np.square(weight).mean()))

    assert peak(RotatedSource(Outlier()).load(name)) < 0.6 * peak(before * scale)


def test_the_norms_of_the_stream_have_no_scale_left_and_others_keep_theirs(tmp_path: Path) -> None:
    config = {**BASE, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 16}
    source = HfFolder(write_random(tmp_path / "model", config, deviation=0.2))
    rotated = RotatedSource(source)
    for name in ("model.norm.weight", "model.layers.1.input_layernorm.weight"):
        assert (rotated.load(name) == 1).all()
    kept = "model.layers.1.self_attn.q_norm.weight"
    np.testing.assert_array_equal(rotated.load(kept), source.load(kept))


def test_the_head_that_comes_off_is_counted(tmp_path: Path, write_recipe: Any) -> None:
    model = open_model(load_recipe(write_recipe(tmp_path)))
    assert model.plan.head is None
    extra = model.rotated().size_bytes - model.size_bytes
    assert extra == 2 * model.plan.vocab_size * model.plan.hidden_size
    assert model.rotated().source.digest() != model.source.digest()


def test_a_rotated_build_serves_on_the_native_engine_and_is_measured_against_the_original(
    tmp_path: Path, write_recipe: Any
) -> None:
    quantize = {"scheme": "W8A16", "method": "gptq", "group_size": 32, "rotate": "hadamard"}
    recipe = write_recipe(
        tmp_path / "recipe",
        quantize=quantize,
        compile=["native-x86"],
        validate={
            "data": [{"path": "heldout.jsonl", "window": 128, "tokens": 512}],
            "gates": {"kl_mean": "< 0.1"},
        },
    )
    command = CommandLine(tmp_path / "store")
    done = command.run("build", recipe)
    assert done.returncode == 0, done.stderr
    shown = command.json("inspect", "tiny")
    assert shown["bits_per_weight"]["whole_model"] > 15
