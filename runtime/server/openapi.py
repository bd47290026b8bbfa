"""The description of the API that `/openapi.json` publishes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.routing import Route

from gristmill.runtime.server.responses import RESPONSES, STREAMED, ErrorResponse

__all__ = ["describe_api"]

_TEXT_ROUTES = frozenset({"/metrics"})
_REQUEST_ID = {
    "name": "X-Request-Id",
    "in": "header",
    "description": "id of this request in logs; a fresh one is made if it is missing",
    "schema": {"type": "string", "maxLength": 128},
}


def describe_api(routes: Iterable[Route], bodies: Mapping[str, Sequence[type[BaseModel]]]) -> dict[str, Any]:
    """OpenAPI 3.1: every route with its methods, the forms of the body that it takes, and its answers."""
    models: set[type[BaseModel]] = {ErrorResponse, *RESPONSES.values()}
    for forms in bodies.values():
        models.update(forms)
    in_order = sorted(models, key=lambda model: model.__name__)
    _, definitions = models_json_schema(
        [(model, "validation") for model in in_order], ref_template="#/components/schemas/{model}"
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "Gristmill", "version": "1"},
        "paths": {
            route.path.replace(":path}", "}"): _operations(route, bodies.get(route.path, ()))
            for route in routes
        },
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operations(route: Route, forms: Sequence[type[BaseModel]]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "parameters": [*(_path_parameter(name) for name in route.param_convertors), _REQUEST_ID],
        "responses": _responses(route.path),
    }
    if forms:
        schemas = [_reference(form) for form in forms]
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {method.lower(): operation for method in sorted(route.methods or ()) if method != "HEAD"}


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _responses(path: str) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": {}}}
    if path in RESPONSES:
        content = {"application/json": {"schema": _reference(RESPONSES[path])}}
    if path in STREAMED:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    if path in _TEXT_ROUTES:
        content = {"text/plain": {"schema": {"type": "string"}}}
    failed = {"application/json": {"schema": _reference(ErrorResponse) if path in RESPONSES else {}}}
    return {
        "200": {"description": "the answer", "content": content},
        "400": {"description": "the request is wrong", "content": failed},
        "4XX": {"description": "the request can't be served", "content": failed},
        "5XX": {"description": "the server failed or is not ready", "content": failed},
    }


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}
