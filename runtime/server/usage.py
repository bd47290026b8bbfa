"""The token counts of one response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill.runtime.engine import EngineRequest
from gristmill.runtime.outputs import OutputDelta

__all__ = ["UsageCounter"]


class UsageCounter:
    """Counts while answers are written, so that a stream and a whole answer can't differ.

    Each prompt counts once, however many answers it gets; its cached tokens are
    those that were there when its first answer began.
    """

    def __init__(self, requests: Sequence[EngineRequest]) -> None:
        self._prompt_tokens = sum(len(request.prompt_token_ids) for request in requests)
        self._completion_tokens = 0
        self._cached: dict[int, int] = {}

    def add(self, prompt_index: int, delta: OutputDelta) -> None:
        """Count what one delta adds."""
        self._completion_tokens += len(delta.token_ids)
        if delta.progress is not None:
            self._cached.setdefault(prompt_index, delta.progress.cached)

    def to_dict(self) -> dict[str, Any]:
        """The `usage` object of the API, as far as the answers have come."""
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._completion_tokens,
            "total_tokens": self._prompt_tokens + self._completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached.values())},
        }
