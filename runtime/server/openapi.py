"""The description of the API that `/openapi.json` publishes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel
from starlette.routing import Route

__all__ = ["describe_api"]


def describe_api(routes: Iterable[Route], bodies: Mapping[str, type[BaseModel]]) -> dict[str, Any]:
    """OpenAPI 3.1: every route with its method, and the schema of the body where a path takes one."""
    paths = {
        route.path.replace(":path}", "}"): _operations(route, bodies.get(route.path)) for route in routes
    }
    return {"openapi": "3.1.0", "info": {"title": "Gristmill", "version": "1"}, "paths": paths}


def _operations(route: Route, body: type[BaseModel] | None) -> dict[str, Any]:
    operation: dict[str, Any] = {"operationId": route.name, "responses": {"200": {"description": "OK"}}}
    if names := list(route.param_convertors):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if body is not None:
        schema = body.model_json_schema()
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {method.lower(): operation for method in sorted(route.methods or ()) if method != "HEAD"}
