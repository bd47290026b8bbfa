"""POST /v1/embeddings: no model that is served here makes embeddings, and the answer says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from gristmill.runtime.errors import RequestError
from gristmill.runtime.server.models import ServedModel, find_model

__all__ = ["refuse_embeddings"]


def refuse_embeddings(models: Mapping[str, ServedModel], body: Mapping[str, Any]) -> NoReturn:
    """Raise RequestError: unsupported_endpoint, or model_not_found for a model that there is not."""
    name = body.get("model")
    model = find_model(models, name if isinstance(name, str) else str(name))
    raise RequestError(
        f"{model.name} is a text generation model and makes no embeddings",
        field="model",
        code="unsupported_endpoint",
        hint="use an embedding server for this",
    )
