"""The HTTP application: routes, error forms, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from gristmill.runtime.errors import GristmillError
from gristmill.runtime.server.chat import chat
from gristmill.runtime.server.completions import complete
from gristmill.runtime.server.errors import on_client_left, on_error, on_http_error
from gristmill.runtime.server.metrics import Metrics
from gristmill.runtime.server.models import ServedModel, find_model, model_card
from gristmill.runtime.server.parse import read_object
from gristmill.runtime.server.protocol import ChatRequest, CompletionRequest

__all__ = ["create_app"]


def create_app(models: Mapping[str, ServedModel], metrics: Metrics) -> FastAPI:
    """The OpenAI-compatible API over these models, by id; engines belong to the caller."""
    app = FastAPI(title="Gristmill", docs_url=None, redoc_url=None)
    app.add_exception_handler(GristmillError, on_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(ClientDisconnect, on_client_left)
    app.add_exception_handler(Exception, on_error)
    metrics.watch({name: model.engine.stats for name, model in models.items()})
    _add_generation(app, models)
    _add_models(app, models)
    _add_operations(app, models, metrics)
    return app


def _add_generation(app: FastAPI, models: Mapping[str, ServedModel]) -> None:
    @app.post("/v1/completions", openapi_extra=_body_schema(CompletionRequest))
    async def completions(request: Request) -> Response:
        return await complete(models, await read_object(request), request.receive)

    @app.post("/v1/chat/completions", openapi_extra=_body_schema(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        return await chat(models, await read_object(request), request.receive)


def _add_models(app: FastAPI, models: Mapping[str, ServedModel]) -> None:
    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [model_card(model) for model in models.values()]}

    @app.get("/v1/models/{name:path}")
    async def get_model(name: str) -> dict[str, Any]:
        return model_card(find_model(models, name))


def _add_operations(app: FastAPI, models: Mapping[str, ServedModel], metrics: Metrics) -> None:
    @app.get("/health")
    async def health() -> Response:
        dead = [name for name, model in models.items() if not model.engine.is_alive]
        if dead:
            return JSONResponse({"status": "unhealthy", "models": dead}, 503)
        return JSONResponse({"status": "ok"})

    @app.get("/metrics")
    async def scrape() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _body_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """Bodies are parsed by hand, for errors in OpenAI's form; their schema is still published."""
    schema = kind.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
