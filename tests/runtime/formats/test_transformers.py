"""transformers loads our checkpoints: exactly our weights, and the logits of the dequantized model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from gristmill.runtime.formats.write import write_checkpoint
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme
from gristmill.runtime.sources.base import ModelSource

Quantize = Callable[..., dict[str, QuantizedTensor]]
SchemeOf = Callable[[str], QuantScheme | None]

W4 = QuantScheme(4, 32, symmetric=False)
W4_G16 = QuantScheme(4, 16, symmetric=True)
W8 = QuantScheme(8, -1, symmetric=True)


def everywhere(scheme: QuantScheme) -> SchemeOf:
    return lambda name: scheme


CASES: dict[str, SchemeOf] = {
    scheme.name: everywhere(scheme)
    for scheme in (
        QuantScheme(bits, group_size, symmetric)
        for bits, group_size in ((4, 32), (4, -1), (8, 64), (8, -1), (2, 16), (3, 32), (5, 32), (6, 64))
        for symmetric in (True, False)
    )
}
CASES["skipped layers"] = lambda name: None if "layers.1." in name or name.endswith("o_proj") else W4
CASES["two schemes"] = lambda name: W8 if name.endswith("down_proj") else W4
CASES["three schemes and skipped layers"] = lambda name: (
    None if "layers.2." in name else W8 if "self_attn" in name else W4 if "layers.0." in name else W4_G16
)


def assert_same_model(folder: Path, original: Path, quantized: dict[str, QuantizedTensor]) -> None:
    tokens = torch.arange(3, 40)[None]
    expected = AutoModelForCausalLM.from_pretrained(original)
    with torch.no_grad():
        for name, tensor in quantized.items():
            expected.get_submodule(name).weight.copy_(torch.from_numpy(tensor.dequantize()))
        loaded = AutoModelForCausalLM.from_pretrained(folder)
        assert torch.equal(loaded(tokens).logits, expected(tokens).logits)
    for name, tensor in quantized.items():
        weight = loaded.get_submodule(name).weight
        assert torch.equal(weight, torch.from_numpy(tensor.dequantize()).to(torch.bfloat16)), name


@pytest.mark.parametrize("case", CASES)
def test_weights_and_logits_are_exact(
    tmp_path: Path, tiny_llama: Path, tiny_source: ModelSource, quantize_model: Quantize, case: str
) -> None:
    quantized = quantize_model(tiny_source, CASES[case])
    write_checkpoint(tmp_path / "out", tiny_source, quantized, {}, "compressed-tensors")
    assert_same_model(tmp_path / "out", tiny_llama, quantized)


def test_shards_and_a_head_of_its_own_are_exact(
    tmp_path: Path, tiny_llama_untied: Path, tiny_untied_source: ModelSource, quantize_model: Quantize
) -> None:
    quantized = quantize_model(tiny_untied_source, everywhere(W4))
    write_checkpoint(
        tmp_path / "out", tiny_untied_source, quantized, {}, "compressed-tensors", shard_bytes=50_000
    )
    assert_same_model(tmp_path / "out", tiny_llama_untied, quantized)


def test_tokenizer_and_generation_defaults_survive(
    tmp_path: Path, tiny_llama: Path, tiny_source: ModelSource, quantize_model: Quantize
) -> None:
    write_checkpoint(tmp_path / "out", tiny_source, quantize_model(tiny_source, everywhere(W4)), {}, "awq")
    chat = [{"role": "user", "content": "Grüße, how much is a bushel?"}]
    before, after = (AutoTokenizer.from_pretrained(folder) for folder in (tiny_llama, tmp_path / "out"))
    assert after.apply_chat_template(chat) == before.apply_chat_template(chat)
    assert GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id == [2, 0]
