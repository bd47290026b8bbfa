"""A whole build of a mixture of experts, one of which no token ever reaches."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from gristmill.artifacts.artifact import Artifact
from gristmill.artifacts.store import Store
from gristmill.pipeline.report.evidence import read_coverage, read_layer_errors
from gristmill.pipeline.run import build
from gristmill.recipes import load_recipe
from gristmill.runtime.architectures import plan_model
from gristmill.runtime.checkpoint import Checkpoint, open_checkpoint
from gristmill.runtime.executors.base import KVCacheConfig, SequenceStep
from gristmill.runtime.executors.reference.executor import ReferenceExecutor
from gristmill.runtime.golden import DEFAULT_TOLERANCE
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme
from tests.tiny_checkpoints import write_random, write_rounded

UNROUTED = "model.layers.1.mlp.experts.2"
TOKENS = list(range(40, 70))


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Path:
    """A tiny Qwen2-MoE with the tokenizer of the tiny Llama.

    Channel 0 of every state is high and stays so. The router of layer 1 turns
    one expert down for it.
    """
    folder = _random_mixture(tmp_path_factory.mktemp("mixture") / "model", tiny_llama)
    tensors = {name: read.copy() for name, read in _tensors(folder).items()}
    tensors["model.embed_tokens.weight"][:, 0] = 8
    router = tensors["model.layers.1.mlp.gate.weight"]
    router[:, 0] = 0
    router[2] = 0
    router[2, 0] = -8
    save_file(tensors, folder / "model.safetensors")
    return folder


def _random_mixture(folder: Path, tiny_llama: Path, deviation: float = 0.15, **changes: Any) -> Path:
    llama = json.loads((tiny_llama / "config.json").read_text())
    config = {key: llama[key] for key in ("vocab_size", "hidden_size", "max_position_embeddings", "dtype")}
    config |= {
        "model_type": "qwen2_moe",
        "architectures": ["Qwen2MoeForCausalLM"],
        "intermediate_size": 96,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 3,
        "mlp_only_layers": [0],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        **changes,
    }
    write_random(folder, config, deviation)
    for file in (*tiny_llama.glob("*token*"), *tiny_llama.glob("chat_template*")):
        shutil.copy(file, folder)
    return folder


def _tensors(folder: Path) -> dict[str, Any]:
    checkpoint = open_checkpoint(folder)
    return {name: checkpoint.tensor(name) for name in plan_model(checkpoint.config).tensor_shapes()}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory, mixture: Path, write_recipe: Any) -> Artifact:
    folder = tmp_path_factory.mktemp("build")
    recipe = write_recipe(folder / "recipe", model=str(mixture))
    return build(load_recipe(str(recipe)), Store(folder / "store"))


@pytest.fixture(scope="module")
def checkpoint(artifact: Artifact) -> Checkpoint:
    return open_checkpoint(artifact.folder / "checkpoint")


def test_every_expert_is_packed_under_its_own_name_and_no_router_is(
    artifact: Artifact, checkpoint: Checkpoint
) -> None:
    assert set(checkpoint.schemes) == {linear.name for linear in checkpoint.plan.linears}
    routers = [router.name for layer in checkpoint.plan.layers for router in layer.mlp.routers]
    assert len(routers) == 4
    assert set(routers) <= set(checkpoint.config["quantization_config"]["ignore"])
    assert artifact.manifest.validation["reference"].kl.mean < 0.5


def test_the_routers_keep_their_bytes(mixture: Path, checkpoint: Checkpoint) -> None:
    before = open_checkpoint(mixture)
    for layer in checkpoint.plan.layers:
        for router in layer.mlp.routers:
            assert np.array_equal(checkpoint.tensor(router.weight), before.tensor(router.weight))


def test_the_artifact_tells_how_many_tokens_each_expert_saw(artifact: Artifact) -> None:
    coverage = read_coverage(artifact)
    assert coverage is not None
    assert coverage.minimum == 1024
    assert len(coverage.routed) == 8
    assert coverage.routed[UNROUTED] == 0
    assert UNROUTED in coverage.below


def test_the_user_is_told_which_experts_saw_too_few(artifact: Artifact) -> None:
    errors = read_layer_errors(artifact)
    assert errors is not None
    assert any(note.startswith("layer 1: ") and "2 (0)" in note for note in errors.notes)


def test_an_expert_that_no_token_reached_is_quantized_like_the_others(artifact: Artifact) -> None:
    errors = read_layer_errors(artifact)
    assert errors is not None
    of_experts = {name: error for name, error in errors.errors.items() if ".experts." in name}
    unrouted = [error for name, error in of_experts.items() if name.startswith(UNROUTED)]
    assert len(unrouted) == 3
    assert max(unrouted) < 3 * float(np.median(list(of_experts.values())))


def reference_logits(checkpoint: Checkpoint) -> NDArray[np.float32]:
    cache = KVCacheConfig(num_blocks=4, block_size=16, dtype="float32")
    step = SequenceStep(TOKENS, 0, range(2), "all")
    return ReferenceExecutor(checkpoint, cache, "float32").execute([step])


def test_transformers_gives_the_logits_of_the_unpacked_checkpoint(
    tmp_path: Path, artifact: Artifact, checkpoint: Checkpoint
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    packed = {linear.weight: linear for linear in checkpoint.plan.linears}
    tensors = {}
    for name in checkpoint.plan.tensor_shapes():
        weight = checkpoint.weight(packed[name]) if name in packed else checkpoint.tensor(name)
        weight = weight.dequantize() if isinstance(weight, QuantizedTensor) else weight
        tensors[name] = weight.astype(np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    config = {key: value for key, value in checkpoint.config.items() if key != "quantization_config"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    oracle = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        wanted = oracle(torch.tensor([TOKENS])).logits[0].numpy()
    np.testing.assert_allclose(reference_logits(checkpoint), wanted, atol=2e-4, rtol=0)


def test_transformers_reads_symmetric_experts_as_they_are_packed(tmp_path: Path, mixture: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    scheme = QuantScheme(4, 32, symmetric=True)
    packed = write_rounded(tmp_path / "packed", mixture, lambda name: scheme)
    oracle = AutoModelForCausalLM.from_pretrained(packed, dtype=torch.float32).eval()
    with torch.no_grad():
        wanted = oracle(torch.tensor([TOKENS])).logits[0].numpy()
    lost = reference_logits(open_checkpoint(packed)) - wanted
    assert np.linalg.norm(lost) < 3e-3 * np.linalg.norm(wanted), "it rounds unpacked experts to bfloat16"


def test_a_native_engine_proves_itself_and_is_validated(
    tmp_path: Path, mixture: Path, write_recipe: Any
) -> None:
    recipe = write_recipe(tmp_path / "recipe", model=str(mixture), compile=["native-x86"])
    manifest = build(load_recipe(str(recipe)), Store(tmp_path / "store")).manifest
    native = next(engine for engine in manifest.engines if engine.target == "native-x86")
    assert native.kernels["router"].startswith("float32 x float32")
    assert native.kernels["experts_down"].startswith("int4")
    assert native.golden is not None
    assert native.golden.kl_max < 0.1
    assert manifest.validation["native-x86"].kl.mean < 0.5


def test_rounding_that_sends_tokens_to_other_experts_ends_no_build(
    tmp_path: Path, tiny_llama: Path, write_recipe: Any
) -> None:
    many = {"moe_intermediate_size": 96, "num_experts": 64, "mlp_only_layers": [], "norm_topk_prob": True}
    model = _random_mixture(tmp_path / "model", tiny_llama, 0.2, **many)
    quantize = {"scheme": "W4A16_ASYM", "method": "rtn", "group_size": 32}
    recipe = write_recipe(tmp_path / "recipe", model=str(model), quantize=quantize)
    (engine,) = build(load_recipe(str(recipe)), Store(tmp_path / "store")).manifest.engines
    assert engine.golden is not None
    assert engine.golden.kl_max > DEFAULT_TOLERANCE, "rounding changed no token's experts"
    assert engine.golden.tolerance > engine.golden.kl_max


def test_a_search_gives_all_experts_of_a_layer_one_width(
    tmp_path: Path, mixture: Path, write_recipe: Any
) -> None:
    quantize = {
        "scheme": "W4A16",
        "method": "gptq",
        "group_size": 32,
        "search": {"budget": {"bits_per_weight": 4.9}, "bits": [4, 8]},
    }
    recipe = write_recipe(tmp_path / "recipe", model=str(mixture), quantize=quantize)
    schemes = build(load_recipe(str(recipe)), Store(tmp_path / "store")).manifest.schemes
    widths = {name: group.scheme.bits for group in schemes for name in group.linears}
    assert set(widths.values()) == {4, 8}
    for layer in (1, 2):
        assert len({bits for name, bits in widths.items() if f"layers.{layer}.mlp.experts." in name}) == 1
