"""The HTTP application: routes, error forms, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
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
from gristmill.runtime.server.errors import on_client_left, on_error, on_http_error
from gristmill.runtime.server.metrics import Metrics
from gristmill.runtime.server.models import ServedModel, find_model, model_card
from gristmill.runtime.server.openapi import describe_api
from gristmill.runtime.server.parse import read_object
from gristmill.runtime.server.protocol import ChatRequest, CompletionRequest

__all__ = ["create_app"]

# Bodies are parsed by hand, for errors in OpenAI's form; their schema is still published.
_BODIES: Mapping[str, type[BaseModel]] = MappingProxyType(
    {"/v1/completions": CompletionRequest, "/v1/chat/completions": ChatRequest}
)


def create_app(models: Mapping[str, ServedModel], metrics: Metrics) -> Starlette:
    """The OpenAI-compatible API over these models, by id; engines belong to the caller."""
    metrics.watch({name: model.engine.stats for name, model in models.items()})
    routes = [*_generation(models), *_models(models), *_operations(models, metrics)]

    async def openapi(request: Request) -> Response:
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


def _generation(models: Mapping[str, ServedModel]) -> list[Route]:
    async def completions(request: Request) -> Response:
        return await complete(models, await read_object(request), caller_of(request))

    async def chat_completions(request: Request) -> Response:
        return await chat(models, await read_object(request), caller_of(request))

    return [
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    ]


def _models(models: Mapping[str, ServedModel]) -> list[Route]:
    async def list_models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [model_card(model) for model in models.values()]})

    async def get_model(request: Request) -> Response:
        return JSONResponse(model_card(find_model(models, request.path_params["name"])))

    return [Route("/v1/models", list_models), Route("/v1/models/{name:path}", get_model)]


def _operations(models: Mapping[str, ServedModel], metrics: Metrics) -> list[Route]:
    async def health(request: Request) -> Response:
        dead = [name for name, model in models.items() if not model.engine.is_alive]
        if dead:
            return JSONResponse({"status": "unhealthy", "models": dead}, 503)
        return JSONResponse({"status": "ok"})

    async def scrape(request: Request) -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return [Route("/health", health), Route("/metrics", scrape)]
