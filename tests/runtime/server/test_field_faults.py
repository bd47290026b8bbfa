"""A value of the wrong kind is told in our words, with what was found as the client wrote it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from gristmill.runtime.errors import RequestError
from gristmill.runtime.server.parse import parse_request
from gristmill.runtime.server.protocol import ChatRequest, CompletionRequest
from gristmill.runtime.server.tokenize import DetokenizeRequest, TokenizeTextRequest

WRONG: tuple[Any, ...] = (True, 1.5, 7, "text", [1, "a"], {"a": [1]}, [[True]], 10**400, "x" * 5000)
COMPLETE: dict[type[BaseModel], dict[str, Any]] = {
    CompletionRequest: {"model": "m", "prompt": "p"},
    ChatRequest: {"model": "m", "messages": [{"role": "user", "content": "c"}]},
    TokenizeTextRequest: {"prompt": "p"},
    DetokenizeRequest: {"tokens": [1]},
}


def fault_of(form: type[BaseModel], **fields: Any) -> RequestError | None:
    try:
        parse_request(form, COMPLETE[form] | fields, {})
    except RequestError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": True}, "max_tokens is invalid; found true; expected a whole number"),
        ({"max_tokens": 1.0}, "max_tokens is invalid; found 1.0; expected a whole number"),
        ({"stop": 5}, "stop is invalid; found 5; expected text or a list of texts"),
        ({"stop": ["a", 1]}, 'stop is invalid; found ["a", 1]; expected text or a list of texts'),
        ({"temperature": "hot"}, 'temperature is invalid; found "hot"; expected a number'),
        (
            {"logit_bias": {"5": "a"}},
            'logit_bias is invalid; found {"5": "a"}; expected an object of numbers',
        ),
        ({"stream_options": 1}, "stream_options is invalid; found 1; expected an object"),
        (
            {"stream_options": {"include_usage": 1}},
            "stream_options.include_usage is invalid; found 1; expected true or false",
        ),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens is invalid; found -2; expected at least -1"),
        (
            {"prompt": [1, "a"]},
            'prompt is invalid; found [1, "a"]; expected text or a list of texts '
            "or a list of whole numbers or a list of lists of whole numbers",
        ),
    ],
)
def test_the_fault_says_what_was_found_and_expected(fields: dict[str, Any], message: str) -> None:
    fault = fault_of(CompletionRequest, **fields)
    assert fault is not None
    assert fault.line() == message
    assert fault.field == next(iter(fields))


@pytest.mark.parametrize("form", COMPLETE)
def test_no_field_and_no_value_brings_out_the_validators_words(form: type[BaseModel]) -> None:
    for name in form.model_fields:
        for value in WRONG:
            fault = fault_of(form, **{name: value})
            if fault is not None:
                assert "nput" not in fault.line()
                assert fault.expected or fault.hint
                assert len(fault.line()) < 400
