"""Every sampling field is checked where it enters, and the error names it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gristmill.runtime.errors import RequestError
from gristmill.runtime.sampling.params import SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", True),
        ("n", 1000),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "1"),
        ("temperature", None),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", math.nan),
        ("max_tokens", -1),
        ("max_tokens", 0),
        ("max_tokens", 1.0),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("stop", [""]),
        ("stop", [1]),
        ("stop", 5),
        ("stop", ["x"] * 65),
        ("stop", ["x" * 1025]),
        ("stop_token_ids", [True]),
        ("stop_token_ids", ["5"]),
        ("stop_token_ids", 5),
        ("bad_words", [""]),
        ("bad_words", [5]),
        ("bad_words", ["x"] * 257),
        ("bad_words", ["x" * 1025]),
        ("bad_word_ids", [[]]),
        ("bad_word_ids", [["5"]]),
        ("bad_word_ids", 5),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [True]),
        ("allowed_token_ids", 5),
        ("ignore_eos", 1),
        ("skip_special_tokens", None),
        ("include_stop_str_in_output", "no"),
        ("seed", 2**63),
        ("seed", 1.0),
        ("logprobs", 21),
        ("logprobs", -1),
        ("prompt_logprobs", 21),
        ("logit_bias", {"5": 1.0}),
        ("logit_bias", {5: 101.0}),
        ("logit_bias", {5: math.nan}),
        ("logit_bias", {5: "1"}),
        ("logit_bias", [5]),
    ],
)
def test_a_wrong_value_is_refused_naming_the_field(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field


def test_several_greedy_answers_are_refused() -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(n=2, temperature=0.0)
    assert caught.value.field == "n"


def test_whole_numbers_are_good_for_fractions() -> None:
    assert SamplingParams(temperature=0, top_p=1).is_greedy


def test_one_stop_string_may_stand_alone() -> None:
    assert SamplingParams(stop="END").stop == ("END",)  # type: ignore[arg-type]


def test_scoring_needs_no_output_tokens() -> None:
    assert SamplingParams(max_tokens=0, prompt_logprobs=0).max_tokens == 0


@pytest.mark.parametrize("field", ["logit_bias", "stop_token_ids"])
@pytest.mark.parametrize("token_id", [-1, 10])
def test_a_token_id_outside_the_vocabulary_is_refused(field: str, token_id: int) -> None:
    params = SamplingParams(**{field: {token_id: 1.0} if field == "logit_bias" else [token_id]})  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="expected 0 to 9") as caught:
        params.check_vocabulary(10)
    assert caught.value.field == field


def test_parameters_can_be_written_as_json() -> None:
    values = SamplingParams(logit_bias={3: 1.5}, stop=("a",)).to_dict()
    assert values["logit_bias"] == {"3": 1.5}
    assert values["stop"] == ["a"]
