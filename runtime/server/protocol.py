"""The two generation requests of the API, as far as they are served; each field says what it does."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from gristmill.runtime.errors import RequestError
from gristmill.runtime.sampling.params import SamplingParams

__all__ = [
    "STRICT",
    "ChatRequest",
    "ChatTemplateRequest",
    "CompletionRequest",
    "StreamOptions",
    "sampling_params",
]

STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)
"""Of all bodies; they are built while models load (`app.build_forms`), so that a start is not longer."""

_INT32 = 2**31

_SAMPLING = (
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
    "bad_words",
    "allowed_token_ids",
    "ignore_eos",
    "seed",
    "skip_special_tokens",
    "include_stop_str_in_output",
)


class StreamOptions(BaseModel):
    """What a stream tells beside its text; obfuscation has no effect here."""

    model_config = STRICT

    include_usage: bool = Field(False, description="a last chunk with the token counts")
    continuous_usage_stats: bool = Field(False, description="the counts so far in every chunk")
    include_obfuscation: bool | None = None


class _GenerationRequest(BaseModel):
    """What both requests have: the model, how to sample, how to answer. SamplingParams checks the ranges.

    Defaults are OpenAI's for every model: a model's `generation_config.json`
    gives the tokens that end an answer and nothing else.
    """

    model_config = STRICT

    model: str = Field(description="id of a served model")
    n: int = Field(1, description="answers to each prompt")
    temperature: float = Field(1.0, description="0 takes the most probable token")
    top_p: float = Field(1.0, description="the most probable tokens that together have this much")
    top_k: int = Field(0, description="the k most probable tokens; 0 or -1 for all")
    min_p: float = Field(0.0, description="tokens at least this probable relative to the first")
    repetition_penalty: float = Field(1.0, description="divides the logits of tokens seen before")
    presence_penalty: float = Field(0.0, description="taken off the logits of tokens written before")
    frequency_penalty: float = Field(0.0, description="the same, as often as they were written")
    max_tokens: int | None = Field(None, description="most tokens of an answer")
    min_tokens: int = Field(0, description="tokens before an answer may end")
    stop: str | list[str] = Field(default_factory=list, description="texts that end an answer")
    stop_token_ids: list[int] = Field(default_factory=list, description="tokens that end an answer")
    include_stop_str_in_output: bool = Field(False, description="show what ended the answer")
    ignore_eos: bool = Field(False, description="go on after the model's own end")
    bad_words: list[str] = Field(default_factory=list, description="texts that are not written")
    allowed_token_ids: list[int] | None = Field(None, description="no other tokens are chosen")
    logit_bias: dict[str, float] = Field(default_factory=dict, description="added to logits, by token id")
    seed: int | None = Field(None, description="the same seed gives the same answers")
    skip_special_tokens: bool = Field(True, description="leave special tokens out of the text")
    prompt_logprobs: int | None = Field(None, description="report the k best at each prompt position")
    truncate_prompt_tokens: int | None = Field(
        None, ge=-1, lt=_INT32, description="keep the last k tokens of the prompt; -1 as many as fit"
    )
    priority: int = Field(0, ge=-_INT32, lt=_INT32, description="the lower, the sooner; shown in the answer")
    cache_salt: str = Field(
        "", max_length=256, description="cached prompts are shared under the same salt only"
    )
    return_token_ids: bool = Field(False, description="show the ids of prompt and answer")
    return_tokens_as_token_ids: bool = Field(False, description="name tokens `token_id:ID` in logprobs")
    stream: bool = Field(False, description="answer in server-sent events")
    stream_options: StreamOptions | None = Field(None, description="token counts in a stream")
    return_progress: bool = Field(False, description="`prompt_progress` chunks while prompts are read")

    @property
    def include_usage(self) -> bool:
        """True when a stream ends with its token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        """True when each chunk of a stream has the token counts so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats


class CompletionRequest(_GenerationRequest):
    """POST /v1/completions. A prompt is text or token ids; a list of prompts gives `n` answers to each."""

    prompt: str | list[str] | list[int] | list[list[int]] = Field(description="text or token ids, or a list")
    best_of: int | None = Field(None, description="answers to make, of which the `n` likeliest are shown")
    logprobs: int | None = Field(None, description="log probabilities, with the k best at each place")
    echo: bool = Field(False, description="show the prompt first")
    add_special_tokens: bool = Field(True, description="what the tokenizer puts around a text")


class ChatTemplateRequest(BaseModel):
    """What a chat template turns into a prompt. `tools` and `documents` only reach the template."""

    model_config = STRICT

    messages: list[dict[str, Any]] = Field(min_length=1, description="the chat so far")
    tools: list[dict[str, Any]] | None = Field(None, description="rendered by the model's template")
    documents: list[dict[str, Any]] | None = Field(None, description="rendered by the model's template")
    add_generation_prompt: bool = Field(True, description="end the prompt where the answer begins")
    add_special_tokens: bool = Field(False, description="what the tokenizer puts around a text")
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="variables of the model's template"
    )


class ChatRequest(_GenerationRequest, ChatTemplateRequest):
    """POST /v1/chat/completions."""

    max_completion_tokens: int | None = Field(None, description="another name of max_tokens")
    logprobs: bool = Field(False, description="log probabilities of the answer")
    top_logprobs: int | None = Field(None, description="with the k best at each place")


def sampling_params(
    request: CompletionRequest | ChatRequest,
    *,
    n: int,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """The request's sampling parameters. Raises RequestError naming the field that is out of range."""
    chosen = {name: getattr(request, name) for name in _SAMPLING}
    return SamplingParams(
        **chosen,
        n=n,
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
