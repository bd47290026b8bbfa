"""The real demo model, read as transformers reads it."""

from __future__ import annotations

import gzip
import json
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from tokenizers import Tokenizer, pre_tokenizers

from gristmill.runtime.sources.gguf_file import GgufFile


@pytest.fixture(scope="module")
def demo(smollm2_gguf: Path) -> GgufFile:
    """The demo model as a source."""
    return GgufFile([smollm2_gguf])


@pytest.fixture(scope="module")
def demo_tokenizer(demo: GgufFile) -> Tokenizer:
    """The demo model's tokenizer as we make it."""
    return Tokenizer.from_str(demo.side_files()["tokenizer.json"].decode())


def test_every_tensor_is_bit_equal_to_transformers(demo: GgufFile, smollm2_gguf: Path) -> None:
    """The steps of transformers' loader, less its search for names, which takes ten seconds."""
    import torch
    from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor

    reader = gguf.GGUFReader(smollm2_gguf)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, demo.config["num_hidden_layers"])
    stored = {tensor.name: tensor for tensor in reader.tensors}
    processor = LlamaTensorProcessor(demo.config)
    for name in demo.tensor_shapes():
        tensor = stored.pop(names.get_name(name, try_suffixes=(".weight",)))
        values = processor.process(dequantize(tensor.data, tensor.tensor_type), tensor.name).weights
        expected = torch.from_numpy(np.copy(values)).to(torch.bfloat16).view(torch.int16).numpy()
        assert np.array_equal(demo.load(name).view(np.int16), expected), name
    assert not stored


def test_configuration_is_the_one_of_the_published_model(demo: GgufFile) -> None:
    published = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "pad_token_id": 2,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": 49152,
    }
    assert {key: demo.config[key] for key in published} == published
    assert json.loads(demo.side_files()["generation_config.json"])["eos_token_id"] == [2]


def _lines(data_dir: Path) -> Iterator[str]:
    for task in ("code", "sql", "chat", "docqa", "summarize", "tool_call"):
        with gzip.open(data_dir / "prompts" / f"{task}.jsonl.gz", "rt") as file:
            for row in map(json.loads, list(file)[:400]):
                yield "\n".join(str(message.get("content") or "") for message in row["messages"])[:2000]
    for name in ("zhwiki_cmrc", "wikitext2_valid_a"):
        with gzip.open(data_dir / "lm" / f"{name}.txt.gz", "rt") as file:
            yield from list(file)[:300]
    yield from (
        "<|im_start|>user\nhi<|im_end|>",
        "a<|endoftext|>b <|im_end|>",
        "🚀🙂‍↔️👨‍👩‍👧 ✅",
        "\t \n\n  x\r\n",
        "",
    )


def test_texts_are_encoded_as_by_the_models_own_tokenizer(
    demo_tokenizer: Tokenizer, tiny_llama: Path, data_dir: Path
) -> None:
    """transformers reads vocabulary and merges from the GGUF, but not how the model splits text.

    With the published pre_tokenizer it must agree with ours everywhere; as it
    is, on every text without a number after white space.
    """
    theirs = Tokenizer.from_file(str(tiny_llama / "tokenizer.json"))
    lines = list(_lines(data_dir))
    assert len(lines) > 2500
    ours = [encoding.ids for encoding in demo_tokenizer.encode_batch(lines)]
    as_it_is = [encoding.ids for encoding in theirs.encode_batch(lines)]
    different = [line for line, a, b in zip(lines, ours, as_it_is, strict=True) if a != b]
    assert all(_has_number_after_space(line) for line in different)
    digits, byte_level = pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False, use_regex=True)
    theirs.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    assert ours == [encoding.ids for encoding in theirs.encode_batch(lines)]


def _has_number_after_space(line: str) -> bool:
    pairs = re.finditer(r"(?=\s(\S))", line)
    return any(unicodedata.category(pair[1]).startswith("N") for pair in pairs)


def test_decoding_gives_the_text_back(demo_tokenizer: Tokenizer, data_dir: Path) -> None:
    lines = list(_lines(data_dir))
    encoded = [encoding.ids for encoding in demo_tokenizer.encode_batch(lines)]
    assert demo_tokenizer.decode_batch(encoded, skip_special_tokens=False) == lines


def test_special_tokens_are_those_of_the_published_model(demo: GgufFile, demo_tokenizer: Tokenizer) -> None:
    special = {
        token.content: index
        for index, token in demo_tokenizer.get_added_tokens_decoder().items()
        if token.special
    }
    assert sorted(special.values()) == list(range(17))
    assert {name: special[name] for name in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")} == {
        "<|endoftext|>": 0,
        "<|im_start|>": 1,
        "<|im_end|>": 2,
    }
    settings = json.loads(demo.side_files()["tokenizer_config.json"])
    assert (settings["bos_token"], settings["eos_token"]) == ("<|im_start|>", "<|im_end|>")


def test_transformers_loads_the_files_and_renders_the_template(demo: GgufFile, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    for name, data in demo.side_files().items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "config.json").write_text(json.dumps(demo.config))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    chat = [{"role": "user", "content": "hi  42"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|im_start|>user\nhi  42<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 2)
