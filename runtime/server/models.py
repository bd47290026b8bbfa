"""The models that one server offers, by id."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gristmill.runtime.async_engine import AsyncEngine
from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.errors import RequestError
from gristmill.runtime.memory import MemoryPlan
from gristmill.runtime.server.prefix_watch import PrefixWatch
from gristmill.runtime.server.prompts import PromptReader
from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["LoadedModel", "ServedModel", "find_model", "model_card", "new_id"]


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A proven engine that serves nobody yet, the plan of its memory and the artifact's digest."""

    name: str
    engine: LLMEngine
    memory: MemoryPlan | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """One engine under the id that clients name, and the reader of its prompts; `created` in Unix seconds.

    `prefixes` explains poor hits, where there is a prefix cache.
    """

    name: str
    engine: AsyncEngine
    created: int
    memory: MemoryPlan | None = None
    digest: str | None = None
    prefixes: PrefixWatch | None = None
    prompts: PromptReader = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompts", PromptReader(self.engine.engine))

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
