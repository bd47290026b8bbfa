"""The mix tells what was read on both sides, and warns where they differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.calibration.samples import LengthQuantiles, SourceSummary, TokenSamples
from gristmill.pipeline.report.mix import data_mix, mix_warnings
from gristmill.runtime.prompt_kind import PromptKind
from gristmill.runtime.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Tokenizer:
    return load_tokenizer(tiny_llama)


def samples(tokenizer: Tokenizer, text: str, kind: PromptKind = "text", length: int = 20) -> TokenSamples:
    tokens = tuple(tokenizer.encode(text, add_special_tokens=False))
    source = SourceSummary("a", kind, 1, len(tokens), 1.0, 0, LengthQuantiles(*[length] * 4), (1,))
    return TokenSamples((tokens,), "", 1, len(tokens), frozenset(), (source,))


def test_scripts_and_characters_are_counted(tokenizer: Tokenizer) -> None:
    mix = data_mix(samples(tokenizer, "abcd мир 12"), [], tokenizer)
    assert mix.validation is None
    assert mix.calibration is not None
    assert mix.calibration.scripts == {"Latin": 4 / 7, "Cyrillic": 3 / 7}
    assert mix.calibration.characters == pytest.approx(
        {"letters": 7 / 11, "digits": 2 / 11, "spaces": 2 / 11}
    )
    assert mix_warnings(mix) == ()


def test_equal_sides_give_no_warning(tokenizer: Tokenizer) -> None:
    text = samples(tokenizer, "The mill stands by the river.")
    assert mix_warnings(data_mix(text, [text], tokenizer)) == ()


def test_another_script_is_told(tokenizer: Tokenizer) -> None:
    mix = data_mix(samples(tokenizer, "river mill"), [samples(tokenizer, "река мельница")], tokenizer)
    warnings = mix_warnings(mix)
    assert "Cyrillic: 0% of the letters in calibration, 100% in validation" in warnings
    assert "100% of validation's tokens never occur in calibration" in [
        warning for warning in warnings if "never occur" in warning
    ]


def test_another_kind_and_length_is_told(tokenizer: Tokenizer) -> None:
    chats = samples(tokenizer, "the same words", kind="chat", length=10)
    text = samples(tokenizer, "the same words", length=100)
    assert mix_warnings(data_mix(chats, [text], tokenizer)) == (
        "chat files: 100% of the tokens in calibration, 0% in validation",
        "text files: 0% of the tokens in calibration, 100% in validation",
        "a typical prompt has 10 tokens in calibration, 100 in validation",
    )
