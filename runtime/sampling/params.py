"""What a caller may ask of sampling, checked where it enters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from itertools import chain
from types import MappingProxyType
from typing import Any

from gristmill.runtime.errors import RequestError

__all__ = ["MAX_LOGPROBS", "SamplingParams"]

MAX_LOGPROBS = 20
_MAX_CHOICES = 128
_MAX_STOPS = 64
_MAX_BAD_WORDS = 256
_MAX_CHARACTERS = 1024
_MAX_LOGIT_BIAS = 1024

# name: (least, most); both ends are allowed.
_FLOAT_RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "temperature": (0.0, math.inf),
        "top_p": (0.0, 1.0),
        "min_p": (0.0, 1.0),
        "repetition_penalty": (0.0, math.inf),
        "presence_penalty": (-2.0, 2.0),
        "frequency_penalty": (-2.0, 2.0),
    }
)
_INT_RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "n": (1, _MAX_CHOICES),
        "top_k": (-1, math.inf),
        "max_tokens": (0, math.inf),
        "min_tokens": (0, math.inf),
        "seed": (-(2**63), 2**63 - 1),
        "logprobs": (0, MAX_LOGPROBS),
        "prompt_logprobs": (0, MAX_LOGPROBS),
    }
)
_OPTIONAL = frozenset({"max_tokens", "seed", "logprobs", "prompt_logprobs"})
_FLAGS = ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output")
_NOT_ZERO = frozenset({"top_p", "repetition_penalty"})


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens and when to stop; names and meanings as in vLLM.

    temperature 0 is greedy. top_k of 0 or -1, top_p = 1 and min_p = 0 are off.
    `max_tokens` None means as many as the context has room for; 0 is for scoring
    a prompt (`prompt_logprobs`). `seed` None draws a fresh one; with a seed, the
    tokens of completion i depend on (seed, i) and the logits alone, never on
    other requests. `logprobs` k returns the chosen token's log probability and
    the k best, of the model's own distribution (before any of these settings).
    None of the texts in `bad_words` is written, with or without a space before
    it: of a word of several tokens the last one is withheld. `bad_word_ids` are
    token sequences treated alike, for callers without a tokenizer. Only
    `allowed_token_ids` are chosen, None for all.
    Every field is checked on construction: RequestError names the field.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    bad_words: tuple[str, ...] = ()
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        for name, float_range in _FLOAT_RANGES.items():
            _check_number(name, getattr(self, name), float_range, whole=False)
        for name, int_range in _INT_RANGES.items():
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                _check_number(name, value, int_range, whole=True)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise _invalid(name, getattr(self, name), "true or false")
        object.__setattr__(self, "stop", _checked_texts("stop", self.stop, _MAX_STOPS))
        object.__setattr__(self, "stop_token_ids", _checked_token_ids("stop_token_ids", self.stop_token_ids))
        object.__setattr__(self, "bad_words", _checked_texts("bad_words", self.bad_words, _MAX_BAD_WORDS))
        object.__setattr__(self, "bad_word_ids", _checked_sequences(self.bad_word_ids))
        if self.allowed_token_ids is not None:
            allowed = _checked_token_ids("allowed_token_ids", self.allowed_token_ids)
            object.__setattr__(self, "allowed_token_ids", allowed)
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))
        self._check_combinations()

    @property
    def is_greedy(self) -> bool:
        """True when the most probable token is always chosen."""
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """True when earlier tokens change the logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise RequestError for a token id that the model does not have."""
        named: Mapping[str, Iterable[int]] = {
            "logit_bias": self.logit_bias,
            "stop_token_ids": self.stop_token_ids,
            "bad_words": chain.from_iterable(self.bad_word_ids),
            "allowed_token_ids": self.allowed_token_ids or (),
        }
        for name, token_ids in named.items():
            for token_id in token_ids:
                if not 0 <= token_id < vocab_size:
                    raise _invalid(name, f"token id {token_id}", f"0 to {vocab_size - 1}")

    def to_dict(self) -> dict[str, Any]:
        """The parameters as JSON-ready values."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        bias = {str(token_id): value for token_id, value in self.logit_bias.items()}
        return values | {
            "stop": list(self.stop),
            "stop_token_ids": list(self.stop_token_ids),
            "bad_words": list(self.bad_words),
            "bad_word_ids": [list(token_ids) for token_ids in self.bad_word_ids],
            "allowed_token_ids": None if self.allowed_token_ids is None else list(self.allowed_token_ids),
            "logit_bias": bias,
        }

    def _check_combinations(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _invalid("min_tokens", self.min_tokens, f"at most max_tokens = {self.max_tokens}")
        if self.max_tokens == 0 and self.prompt_logprobs is None:
            raise _invalid("max_tokens", 0, "at least 1, or prompt_logprobs to score the prompt")
        if self.allowed_token_ids == ():
            raise _invalid("allowed_token_ids", "none", "at least one token id, or null for all")
        if self.is_greedy and self.n > 1:
            raise _invalid("n", self.n, "1 with temperature 0, where all answers would be the same")


def _invalid(name: str, found: object, expected: str) -> RequestError:
    return RequestError(f"{name} is invalid", field=name, found=found, expected=expected)


def _check_number(name: str, value: object, limits: tuple[float, float], *, whole: bool) -> None:
    kinds: tuple[type, ...] = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise _invalid(name, f"{value!r:.80}", "a whole number" if whole else "a number")
    number = _finite(name, value)
    least, most = limits
    if not least <= number <= most or (name in _NOT_ZERO and number == 0.0):
        raise _invalid(name, f"{value!r:.80}", _describe(name, least, most))


def _finite(name: str, value: Any) -> float:
    """`value` as a float for comparison; whole numbers beyond a float's range are compared as they are."""
    if isinstance(value, int):
        return value
    if not math.isfinite(value):
        raise _invalid(name, value, "a finite number")
    return float(value)


def _describe(name: str, least: float, most: float) -> str:
    bound = "more than 0" if name in _NOT_ZERO else f"at least {least:g}"
    return bound if math.isinf(most) else f"{bound} and at most {most:g}"


def _checked_texts(name: str, given: object, limit: int) -> tuple[str, ...]:
    texts = (given,) if isinstance(given, str) else () if given is None else given
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise _invalid(name, f"{given!r:.80}", "a string or a list of strings")
    if len(texts) > limit or any(not 0 < len(text) <= _MAX_CHARACTERS for text in texts):
        limits = f"at most {limit} strings of 1 to {_MAX_CHARACTERS} characters"
        raise _invalid(name, f"{given!r:.80}", limits)
    return tuple(texts)


def _checked_token_ids(name: str, token_ids: object) -> tuple[int, ...]:
    listed = () if token_ids is None else token_ids
    if not isinstance(listed, list | tuple) or any(type(token_id) is not int for token_id in listed):
        raise _invalid(name, f"{token_ids!r:.80}", "a list of token ids")
    return tuple(listed)


def _checked_sequences(sequences: object) -> tuple[tuple[int, ...], ...]:
    if not isinstance(sequences, list | tuple) or not all(sequences):
        raise _invalid("bad_word_ids", f"{sequences!r:.80}", "a list of lists of token ids, none empty")
    return tuple(_checked_token_ids("bad_word_ids", token_ids) for token_ids in sequences)


def _checked_bias(bias: object) -> Mapping[int, float]:
    if bias is None:
        return MappingProxyType({})
    if not isinstance(bias, Mapping) or len(bias) > _MAX_LOGIT_BIAS:
        raise _invalid(
            "logit_bias", f"{bias!r:.80}", f"at most {_MAX_LOGIT_BIAS} token ids with a number each"
        )
    checked: dict[int, float] = {}
    for token_id, value in bias.items():
        if type(token_id) is not int:
            raise _invalid("logit_bias", f"key {token_id!r:.80}", "a token id")
        _check_number("logit_bias", value, (-100.0, 100.0), whole=False)
        checked[token_id] = float(value)
    return MappingProxyType(checked)
