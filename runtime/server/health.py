"""/health, /ready, /metrics, /info and /version: what a supervisor, a balancer and an operator look at."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gristmill.runtime.machine import cpu_limits, memory_limit, processor_name
from gristmill.runtime.server.lifecycle import Lifecycle
from gristmill.runtime.server.metrics import Metrics
from gristmill.runtime.server.models import ServedModel, model_card
from gristmill.runtime.server.paths import HEALTH, INFO, METRICS, READY, VERSION

__all__ = ["describe_model", "describe_server", "health_routes"]


def health_routes(models: Mapping[str, ServedModel], metrics: Metrics, lifecycle: Lifecycle) -> list[Route]:
    """Routes that never wait for a model."""

    async def health(request: Request) -> Response:
        """200 while every engine brings its work forward, also while models load and requests drain."""
        faults = {name: fault for name, model in models.items() if (fault := _fault(model))}
        if faults:
            return JSONResponse({"status": "unhealthy", "models": faults}, 503)
        return JSONResponse({"status": "ok" if lifecycle.phase == "ready" else lifecycle.phase})

    async def ready(request: Request) -> Response:
        """200 once all models have loaded and passed their proof, until the server drains."""
        refusal = lifecycle.refusal()
        if refusal is None:
            return JSONResponse({"status": "ready", "models": list(models)})
        status = "overloaded" if lifecycle.phase == "ready" else lifecycle.phase
        return JSONResponse({"status": status, "phase": refusal.found or refusal.what}, 503)

    async def scrape(request: Request) -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def info(request: Request) -> Response:
        return JSONResponse(describe_server(models))

    async def version(request: Request) -> Response:
        return JSONResponse({"version": _version()})

    return [
        Route(HEALTH, health),
        Route(READY, ready),
        Route(METRICS, scrape),
        Route(INFO, info),
        Route(VERSION, version),
    ]


def describe_server(models: Mapping[str, ServedModel]) -> dict[str, Any]:
    """What runs, on what, and where its memory goes."""
    container, cores = memory_limit(), cpu_limits()
    return {
        "version": _version(),
        "python": platform.python_version(),
        "pid": os.getpid(),
        "processor": processor_name(),
        "cores": {**asdict(cores), "effective": cores.effective},
        "container_memory_limit": container.limit if container else None,
        "models": [describe_model(model) for model in models.values()],
    }


def describe_model(model: ServedModel) -> dict[str, Any]:
    """How a model is executed, its settings and its memory plan."""
    memory = model.memory
    return model_card(model) | {
        "digest": model.digest,
        "settings": asdict(model.engine.engine.settings),
        "memory": None if memory is None else memory.to_dict(),
    }


def _version() -> str:
    from importlib.metadata import version  # only here: it brings a parser of mails along

    return version("gristmill")


def _fault(model: ServedModel) -> dict[str, Any] | None:
    """What is wrong with a model's engine, for how long, and since when that counts as wrong."""
    if not model.engine.is_alive:
        return {"status": "dead"}
    stall = model.engine.stall()
    if stall is None:
        return None
    return {"status": "stalled", "seconds": round(stall.seconds, 1), "limit": round(stall.limit, 1)}
