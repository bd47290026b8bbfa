"""The two generation requests of the API, as far as they are served."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from gristmill.runtime.errors import RequestError
from gristmill.runtime.sampling.params import SamplingParams

__all__ = ["ChatRequest", "CompletionRequest", "StreamOptions", "sampling_params"]

_STRICT = ConfigDict(extra="forbid", strict=True, frozen=True)

_SAMPLING = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "seed",
    "skip_special_tokens",
    "include_stop_str_in_output",
)


class StreamOptions(BaseModel):
    """`include_usage` adds a last chunk with the token counts; obfuscation has no effect here."""

    model_config = _STRICT

    include_usage: bool = False
    include_obfuscation: bool | None = None


class _GenerationRequest(BaseModel):
    """What both requests have: the model, how to sample, how to answer. SamplingParams checks the ranges."""

    model_config = _STRICT

    model: str
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: str | list[str] = Field(default_factory=list)
    stop_token_ids: list[int] = Field(default_factory=list)
    ignore_eos: bool = False
    seed: int | None = None
    logit_bias: dict[str, float] = Field(default_factory=dict)
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None

    @property
    def include_usage(self) -> bool:
        """True when a stream ends with its token counts."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(_GenerationRequest):
    """POST /v1/completions. A prompt is text or token ids; a list of prompts gives `n` answers to each."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = None
    echo: bool = False
    add_special_tokens: bool = True


class ChatRequest(_GenerationRequest):
    """POST /v1/chat/completions. `tools` and `documents` only reach the model's template."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool = False
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)


def sampling_params(
    request: CompletionRequest | ChatRequest,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """The request's sampling parameters. Raises RequestError naming the field that is out of range."""
    chosen = {name: getattr(request, name) for name in _SAMPLING}
    return SamplingParams(
        **chosen,
        logit_bias=_token_biases(request.logit_bias),
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _token_biases(biases: dict[str, float]) -> dict[int, float]:
    """JSON has text keys only: `{"50256": -100}`."""
    checked: dict[int, float] = {}
    for key, bias in biases.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 12):
            raise RequestError(
                "logit_bias has a key that is no token id",
                field="logit_bias",
                found=f"{key!r:.80}",
                expected='a token id such as "42"',
            )
        checked[int(key)] = bias
    return checked
