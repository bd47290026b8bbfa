"""How text is split before byte-level BPE, by the value of `tokenizer.ggml.pre`.

GGUF names a scheme and leaves its patterns to the reader. The patterns are
those of the `tokenizer.json` that each scheme was named after; `default` is
llama.cpp's own. A wrong guess would give wrong tokens without an error, so
any other scheme is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from gristmill.runtime.errors import UnsupportedError

__all__ = ["SplitScheme", "build_pre_tokenizer", "split_scheme"]


@dataclass(frozen=True, slots=True)
class SplitScheme:
    """One way to split text.

    patterns        applied in turn, each to the pieces of the one before; a match is a piece
    digits          every digit is a piece of its own (after the patterns)
    gpt2            split by GPT-2's pattern at the end
    nfc             text is normalized to NFC first
    whole_words     a piece that is a token as a whole skips the merges (`ignore_merges`)
    begins_with_bos a text begins with the bos token unless the file says otherwise
    """

    patterns: tuple[str, ...] = ()
    digits: bool = False
    gpt2: bool = False
    nfc: bool = False
    whole_words: bool = False
    begins_with_bos: bool = False


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_PUNCTUATION}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_PUNCTUATION}|{_SPACES}"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"
    "\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    "\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102"
    "\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)
_HAN_AND_MORE = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED_LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _HAN_AND_MORE,
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_AND_MORE)
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")

_GPT2_SCHEME = SplitScheme(gpt2=True)
_DIGITS_SCHEME = SplitScheme(digits=True, gpt2=True)
_LLAMA3_SCHEME = SplitScheme((_LLAMA3,), whole_words=True, begins_with_bos=True)
_QWEN2_SCHEME = SplitScheme((_QWEN2,), nfc=True)

_SCHEMES: Mapping[str, SplitScheme] = {
    "default": SplitScheme(_DEFAULT),
    "gpt-2": _GPT2_SCHEME,
    "smollm": _DIGITS_SCHEME,
    "starcoder": _DIGITS_SCHEME,
    "refact": _DIGITS_SCHEME,
    "llama-bpe": _LLAMA3_SCHEME,
    "llama-v3": _LLAMA3_SCHEME,
    "llama3": _LLAMA3_SCHEME,
    "qwen2": _QWEN2_SCHEME,
    "deepseek-r1-qwen": _QWEN2_SCHEME,
    "deepseek-llm": SplitScheme(_DEEPSEEK_LLM, digits=True),
    "deepseek-coder": SplitScheme(_DEEPSEEK_CODER, digits=True),
    "deepseek-v3": SplitScheme(_DEEPSEEK_V3),
    "tekken": SplitScheme((_TEKKEN,), whole_words=True, begins_with_bos=True),
}


def split_scheme(name: str, path: Path) -> SplitScheme:
    """The scheme called `name`. Raises UnsupportedError for any other name."""
    if name not in _SCHEMES:
        raise UnsupportedError(f"tokenizer.ggml.pre of {path}", found=name, expected=", ".join(_SCHEMES))
    return _SCHEMES[name]


def build_pre_tokenizer(scheme: SplitScheme) -> PreTokenizer:
    """The pre-tokenizer of a scheme; its last step spells the bytes in GPT-2's alphabet."""
    steps: list[PreTokenizer] = [Split(Regex(pattern), "isolated") for pattern in scheme.patterns]
    if scheme.digits:
        steps.append(Digits(individual_digits=True))
    steps.append(ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=scheme.gpt2))
    return steps[0] if len(steps) == 1 else Sequence(steps)
