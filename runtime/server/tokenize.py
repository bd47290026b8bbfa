"""POST /tokenize, /detokenize and /apply-template: what a prompt is to the model, without an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field

from gristmill.runtime.errors import RequestError
from gristmill.runtime.server.fields import UNSUPPORTED_TEMPLATE
from gristmill.runtime.server.models import ServedModel, find_model
from gristmill.runtime.server.parse import parse_request
from gristmill.runtime.server.prompts import about_messages, render_chat
from gristmill.runtime.server.protocol import STRICT, ChatTemplateRequest

__all__ = [
    "ApplyTemplateRequest",
    "DetokenizeRequest",
    "TokenizeChatRequest",
    "TokenizeTextRequest",
    "apply_template",
    "detokenize",
    "tokenize",
]


class TokenizeTextRequest(BaseModel):
    """POST /tokenize of a text. The model may be left out where there is only one."""

    model_config = STRICT

    prompt: str = Field(description="the text")
    model: str | None = Field(None, description="id of a served model")
    add_special_tokens: bool = Field(True, description="what the tokenizer puts around a text")
    return_token_strs: bool = Field(False, description="show the tokens as the vocabulary writes them")


class TokenizeChatRequest(ChatTemplateRequest):
    """POST /tokenize of a chat, as the model's template renders it."""

    model: str | None = Field(None, description="id of a served model")
    return_token_strs: bool = Field(False, description="show the tokens as the vocabulary writes them")


class ApplyTemplateRequest(ChatTemplateRequest):
    """POST /apply-template."""

    model: str | None = Field(None, description="id of a served model")


class DetokenizeRequest(BaseModel):
    """POST /detokenize."""

    model_config = STRICT

    tokens: list[int] = Field(description="token ids")
    model: str | None = Field(None, description="id of a served model")


async def tokenize(models: Mapping[str, ServedModel], body: Mapping[str, Any]) -> dict[str, Any]:
    """The tokens of a text or chat, in vLLM's form. Raises RequestError."""
    request = _parse_tokenize(body)
    model = _model(models, request.model)

    def work() -> dict[str, Any]:
        if isinstance(request, TokenizeTextRequest):
            token_ids = _encode(model, request.prompt, request.add_special_tokens)
        else:
            _, token_ids = _render(model, request)
        strings = [model.tokenizer.backend.id_to_token(token_id) for token_id in token_ids]
        return {**_tokens(model, token_ids), "token_strs": strings if request.return_token_strs else None}

    return await model.prompts.run(work)


async def detokenize(models: Mapping[str, ServedModel], body: Mapping[str, Any]) -> dict[str, Any]:
    """The text of tokens, in vLLM's form. Raises RequestError for an id that the vocabulary lacks."""
    request = parse_request(DetokenizeRequest, body, {})
    model = _model(models, request.model)
    vocab_size = model.tokenizer.vocab_size
    for token_id in request.tokens:
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                "there is no such token",
                field="tokens",
                found=f"{token_id!r:.80}",
                expected=f"0 to {vocab_size - 1}",
            )
    text = await model.prompts.run(lambda: model.tokenizer.decode(request.tokens, skip_special_tokens=False))
    return {"prompt": text}


async def apply_template(models: Mapping[str, ServedModel], body: Mapping[str, Any]) -> dict[str, Any]:
    """The prompt that a chat becomes, and its tokens: just what /v1/chat/completions reads.

    Raises RequestError, with the template's words where it refuses.
    """
    request = parse_request(ApplyTemplateRequest, body, UNSUPPORTED_TEMPLATE)
    model = _model(models, request.model)
    text, token_ids = await model.prompts.run(lambda: _render(model, request))
    return {"prompt": text, **_tokens(model, token_ids)}


def _parse_tokenize(body: Mapping[str, Any]) -> TokenizeTextRequest | TokenizeChatRequest:
    if "messages" not in body:
        return parse_request(TokenizeTextRequest, body, {})
    if "prompt" in body:
        raise RequestError(
            "a prompt and messages exclude each other", field="prompt", hint="give one of them"
        )
    return parse_request(TokenizeChatRequest, body, UNSUPPORTED_TEMPLATE)


def _model(models: Mapping[str, ServedModel], name: str | None) -> ServedModel:
    if name is None and len(models) == 1:
        return next(iter(models.values()))
    if name is None:
        raise RequestError(
            "model is missing", field="model", code="missing_parameter", expected=" or ".join(sorted(models))
        )
    return find_model(models, name)


def _render(model: ServedModel, request: ChatTemplateRequest) -> tuple[str, list[int]]:
    with about_messages():
        text = render_chat(model.tokenizer, request)
        return text, _encode(model, text, request.add_special_tokens)


def _encode(model: ServedModel, text: str, add_special_tokens: bool) -> list[int]:
    model.prompts.check_length(text)
    return model.tokenizer.encode_prompt(text, add_special_tokens=add_special_tokens)


def _tokens(model: ServedModel, token_ids: list[int]) -> dict[str, Any]:
    return {
        "count": len(token_ids),
        "max_model_len": model.engine.engine.max_model_len,
        "tokens": token_ids,
    }
