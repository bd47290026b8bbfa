"""The models that one server offers, by id."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gristmill.runtime.async_engine import AsyncEngine
from gristmill.runtime.errors import RequestError
from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["ServedModel", "find_model", "in_worker", "model_card", "new_id"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """One engine under the id that clients name; `created` in Unix seconds."""

    name: str
    engine: AsyncEngine
    created: int

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.engine.engine.tokenizer


def find_model(models: Mapping[str, ServedModel], name: str) -> ServedModel:
    """The model of that id. Raises RequestError (model_not_found) listing those there are."""
    model = models.get(name)
    if model is None:
        raise RequestError(
            "there is no such model",
            field="model",
            code="model_not_found",
            found=f"{name!r:.80}",
            expected=" or ".join(sorted(models)),
        )
    return model


def model_card(model: ServedModel) -> dict[str, Any]:
    """An entry of /v1/models, with what executes it."""
    engine = model.engine.engine
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "gristmill",
        "max_model_len": engine.max_model_len,
        "engine": {
            "executor": engine.info.name,
            "compute": engine.info.compute,
            "kv_cache": engine.info.kv_cache,
            "kernels": engine.info.kernels,
        },
    }


def new_id(prefix: str) -> str:
    """A fresh id for an answer."""
    return f"{prefix}-{uuid.uuid4().hex}"


async def in_worker(work: Callable[[], T]) -> T:
    """Run templates and tokenizers beside the event loop: a long prompt must not hold up the others."""
    return await asyncio.to_thread(work)
