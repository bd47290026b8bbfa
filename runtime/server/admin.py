"""/admin: what an operator may do to a running server, behind a token of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import psutil
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gristmill.runtime.errors import RequestError
from gristmill.runtime.server.health import describe_model
from gristmill.runtime.server.models import ServedModel, find_model
from gristmill.runtime.server.parse import read_object
from gristmill.runtime.server.paths import ADMIN
from gristmill.runtime.server.reload import Reloader

__all__ = ["admin_routes"]

_STEP_SECONDS = 30.0


def admin_routes(models: Mapping[str, ServedModel], reloader: Reloader | None) -> list[Route]:
    """The operator's routes; without a `reloader` nothing can be reloaded."""

    async def reset_cache(request: Request) -> Response:
        """Forget the cached prefixes of one model, or of all."""
        chosen = _chosen(models, await read_object(request, optional=True))
        for model in chosen:
            await _between_steps(model)
        return JSONResponse({"status": "reset", "models": [model.name for model in chosen]})

    async def reload(request: Request) -> Response:
        """Load a model again by its name and let it take over."""
        if reloader is None:
            raise RequestError("this server can't reload models", code="forbidden")
        name = (await read_object(request)).get("model")
        if not isinstance(name, str):
            raise RequestError("which model is missing", field="model", expected="a model id")
        before = find_model(models, name).digest
        after = (await reloader.reload(name)).digest
        return JSONResponse({"status": "reloaded", "model": name, "digest": after, "replaced": before})

    async def stats(request: Request) -> Response:
        """Counts, settings, learned costs and memory of every model and of the process."""
        used = psutil.Process().memory_info()
        return JSONResponse(
            {
                "memory": {"resident": used.rss, "virtual": used.vms},
                "models": [describe_model(model) | _stats(model) for model in models.values()],
                "retiring": [model.name for model in reloader.retiring] if reloader else [],
            }
        )

    return [
        Route(f"{ADMIN}/cache/reset", reset_cache, methods=["POST"]),
        Route(f"{ADMIN}/reload", reload, methods=["POST"]),
        Route(f"{ADMIN}/stats", stats),
    ]


def _stats(model: ServedModel) -> dict[str, Any]:
    stats = model.engine.stats()
    return {
        "stats": asdict(stats) | {"kv_cache_usage": stats.kv_cache_usage},
        "step_costs_s": model.engine.engine.step_costs(),
    }


async def _between_steps(model: ServedModel) -> None:
    """Empty the prefix cache, once the step that runs has ended."""
    try:
        work = model.engine.call(model.engine.engine.reset_prefix_cache)
        await asyncio.wait_for(work, _STEP_SECONDS)
    except TimeoutError as error:
        raise RequestError(
            "the engine does not answer", code="overloaded", found=model.name, retry_after=_STEP_SECONDS
        ) from error


def _chosen(models: Mapping[str, ServedModel], body: Mapping[str, Any]) -> Sequence[ServedModel]:
    name = body.get("model")
    if name is None:
        return list(models.values())
    if not isinstance(name, str):
        raise RequestError("the model is invalid", field="model", expected="a model id")
    return [find_model(models, name)]
