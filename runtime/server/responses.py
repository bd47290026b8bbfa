"""The responses of the API as `/openapi.json` describes them; a test holds answers against them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from pydantic import BaseModel, Field

__all__ = [
    "RESPONSES",
    "STREAMED",
    "ApplyTemplateResponse",
    "ChatResponse",
    "CompletionResponse",
    "DetokenizeResponse",
    "ErrorResponse",
    "ModelCard",
    "ModelList",
    "TokenizeResponse",
]

FinishReason = Literal["stop", "length", "abort", "error"]
RankedTokens = dict[str, dict[str, Any]]


class _Error(BaseModel):
    message: str = Field(description="what, found, expected, what to do")
    type: str
    param: str | None = Field(description="the field of the request")
    code: str | None = Field(description="the kind of fault, for programs")


class ErrorResponse(BaseModel):
    """What every failed request gets."""

    error: _Error


class _CachedTokens(BaseModel):
    cached_tokens: int = Field(ge=0, description="prompt tokens that the prefix cache held")


class _Usage(BaseModel):
    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    total_tokens: int = Field(ge=0)
    prompt_tokens_details: _CachedTokens


class _Choice(BaseModel):
    index: int = Field(ge=0)
    finish_reason: FinishReason
    stop_reason: int | str | None = Field(description="the stop text or token that ended the answer")
    token_ids: list[int] = Field(default_factory=list, description="with return_token_ids")


class _CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class _CompletionChoice(_Choice):
    text: str
    logprobs: _CompletionLogprobs | None
    prompt_logprobs: list[RankedTokens | None] = Field(default_factory=list, description="if asked for")
    prompt_token_ids: list[int] = Field(default_factory=list, description="with return_token_ids")


class _Message(BaseModel):
    role: Literal["assistant"]
    content: str
    refusal: None


class _ChatLogprobs(BaseModel):
    content: list[dict[str, Any]]
    refusal: None


class _ChatChoice(_Choice):
    message: _Message
    logprobs: _ChatLogprobs | None


class _Answer(BaseModel):
    id: str
    created: int
    model: str
    usage: _Usage
    priority: int = Field(0, description="if the request names one")


class CompletionResponse(_Answer):
    """A whole answer to /v1/completions."""

    object: Literal["text_completion"]
    choices: list[_CompletionChoice]


class ChatResponse(_Answer):
    """A whole answer to /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[_ChatChoice]
    prompt_logprobs: list[RankedTokens | None] = Field(default_factory=list, description="if asked for")
    prompt_token_ids: list[int] = Field(default_factory=list, description="with return_token_ids")


class _Tokens(BaseModel):
    count: int = Field(ge=0)
    max_model_len: int = Field(ge=1)
    tokens: list[int]


class TokenizeResponse(_Tokens):
    """The tokens of a text or chat."""

    token_strs: list[str] | None


class DetokenizeResponse(BaseModel):
    """The text of tokens."""

    prompt: str


class ApplyTemplateResponse(_Tokens):
    """The prompt that a chat becomes."""

    prompt: str


class ModelCard(BaseModel):
    """One served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    engine: dict[str, Any] = Field(description="what executes it")


class ModelList(BaseModel):
    """All served models."""

    object: Literal["list"]
    data: list[ModelCard]


RESPONSES: Mapping[str, type[BaseModel]] = MappingProxyType(
    {
        "/v1/completions": CompletionResponse,
        "/v1/chat/completions": ChatResponse,
        "/v1/models": ModelList,
        "/v1/models/{name:path}": ModelCard,
        "/tokenize": TokenizeResponse,
        "/detokenize": DetokenizeResponse,
        "/apply-template": ApplyTemplateResponse,
    }
)
"""The form of a good answer, by route."""

STREAMED = frozenset({"/v1/completions", "/v1/chat/completions"})
"""Routes that also answer in server-sent events."""
