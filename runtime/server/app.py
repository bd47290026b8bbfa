"""The HTTP application: routes, error forms, nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gristmill.runtime.errors import GristmillError
from gristmill.runtime.server.caller import caller_of
from gristmill.runtime.server.chat import chat
from gristmill.runtime.server.completions import complete
from gristmill.runtime.server.embeddings import refuse_embeddings
from gristmill.runtime.server.errors import on_client_left, on_error, on_http_error
from gristmill.runtime.server.models import ServedModel, find_model, model_card
from gristmill.runtime.server.parse import read_object
from gristmill.runtime.server.protocol import ChatRequest, CompletionRequest
from gristmill.runtime.server.tokenize import (
    ApplyTemplateRequest,
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeTextRequest,
    apply_template,
    detokenize,
    tokenize,
)

__all__ = ["build_forms", "create_app"]

# Bodies are parsed by hand, for errors in OpenAI's form; their schema is still published.
_BODIES: Mapping[str, tuple[type[BaseModel], ...]] = MappingProxyType(
    {
        "/v1/completions": (CompletionRequest,),
        "/v1/chat/completions": (ChatRequest,),
        "/tokenize": (TokenizeTextRequest, TokenizeChatRequest),
        "/detokenize": (DetokenizeRequest,),
        "/apply-template": (ApplyTemplateRequest,),
    }
)


def create_app(
    models: Mapping[str, ServedModel], operations: Sequence[Route], *, ping_seconds: float
) -> Starlette:
    """The OpenAI-compatible API over these models, by id, and the routes about the server itself.

    Engines belong to the caller, which may add and replace models at any time.
    `ping_seconds` is the longest silence of a stream.
    """
    routes = [
        *_generation(models, ping_seconds),
        *_tokens(models),
        *_models(models),
        *operations,
    ]

    async def openapi(request: Request) -> Response:
        from gristmill.runtime.server.openapi import describe_api  # its forms take a while to build

        return JSONResponse(describe_api(routes, _BODIES))

    return Starlette(
        routes=[*routes, Route("/openapi.json", openapi)],
        exception_handlers={
            GristmillError: on_error,
            HTTPException: on_http_error,
            ClientDisconnect: on_client_left,
            Exception: on_error,
        },
    )


def build_forms() -> None:
    """Build the checks of bodies, which takes a moment and is best done while models load."""
    for forms in _BODIES.values():
        for form in forms:
            form.model_rebuild()


def _generation(models: Mapping[str, ServedModel], ping_seconds: float) -> list[Route]:
    async def completions(request: Request) -> Response:
        body = await read_object(request)
        return await complete(models, body, caller_of(request), ping_seconds=ping_seconds)

    async def chat_completions(request: Request) -> Response:
        body = await read_object(request)
        return await chat(models, body, caller_of(request), ping_seconds=ping_seconds)

    async def embeddings(request: Request) -> Response:
        refuse_embeddings(models, await read_object(request))

    return [
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/chat/completions", chat_completions, methods=["POST"]),
        Route("/v1/embeddings", embeddings, methods=["POST"]),
    ]


def _tokens(models: Mapping[str, ServedModel]) -> list[Route]:
    async def tokenize_prompt(request: Request) -> Response:
        return JSONResponse(await tokenize(models, await read_object(request)))

    async def detokenize_tokens(request: Request) -> Response:
        return JSONResponse(await detokenize(models, await read_object(request)))

    async def apply_chat_template(request: Request) -> Response:
        return JSONResponse(await apply_template(models, await read_object(request)))

    return [
        Route("/tokenize", tokenize_prompt, methods=["POST"]),
        Route("/detokenize", detokenize_tokens, methods=["POST"]),
        Route("/apply-template", apply_chat_template, methods=["POST"]),
    ]


def _models(models: Mapping[str, ServedModel]) -> list[Route]:
    async def list_models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [model_card(model) for model in models.values()]})

    async def get_model(request: Request) -> Response:
        return JSONResponse(model_card(find_model(models, request.path_params["name"])))

    return [Route("/v1/models", list_models), Route("/v1/models/{name:path}", get_model)]
