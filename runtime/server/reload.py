"""Replacing a model by what its name means now, without a moment in which neither serves."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field

from gristmill.runtime.errors import RequestError
from gristmill.runtime.server.admission import OpenRequests
from gristmill.runtime.server.lifecycle import Lifecycle
from gristmill.runtime.server.models import LoadedModel, ServedModel, find_model

__all__ = ["Reloader"]

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Reloader:
    """Swaps served models.

    `load` loads and proves the model of a name, in a thread; `serve` starts its
    engine. One reload at a time: two would need the memory of three engines. None while the server
    takes no requests: a load can't be interrupted and would outlive a drain.
    """

    models: MutableMapping[str, ServedModel]
    requests: OpenRequests
    lifecycle: Lifecycle
    load: Callable[[str], LoadedModel]
    serve: Callable[[LoadedModel], ServedModel]
    _busy: bool = False
    _retiring: dict[asyncio.Task[None], ServedModel] = field(default_factory=dict)

    @property
    def retiring(self) -> list[ServedModel]:
        """Models that were replaced and still finish what they began."""
        return list(self._retiring.values())

    async def reload(self, name: str) -> ServedModel:
        """Load the model again and let it take over; requests that have begun stay with the old one.

        Raises RequestError (model_not_found, busy, and as `Lifecycle.refusal`) and whatever loading
        raises; the old one then serves on.
        """
        if (refusal := self.lifecycle.refusal()) is not None:
            raise refusal
        old = find_model(self.models, name)
        if self._busy:
            raise RequestError("a model is being reloaded", code="busy", hint="try again later")
        self._busy = True
        try:
            new = self.serve(await asyncio.to_thread(self.load, name))
        finally:
            self._busy = False
        self.models[name] = new
        task = asyncio.create_task(self._retire(old))
        self._retiring[task] = old
        task.add_done_callback(self._retiring.pop)
        _logger.info("%s was reloaded", name, extra={"fields": {"digest": new.digest}})
        return new

    async def _retire(self, model: ServedModel) -> None:
        await self.requests.wait_for_present(math.inf)
        await model.engine.close()
