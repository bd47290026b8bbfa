"""Where a server stands between its start and its end, and what that means for a new request."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from gristmill.runtime.errors import RequestError

__all__ = ["Lifecycle", "Phase"]

Phase = Literal["loading", "ready", "draining"]

_LOADING_SECONDS = 1.0
_SHEDDING_SECONDS = 5.0


@dataclass(slots=True)
class Lifecycle:
    """The one place that says whether requests are taken.

    `detail` is what is being loaded. `shedding` says why new requests are turned
    away for a while, empty when they are not. `drain_end` is the monotonic time at
    which a drain gives up.
    """

    phase: Phase = "loading"
    detail: str = ""
    shedding: str = ""
    drain_end: float = 0.0

    def drain(self, grace_seconds: float) -> None:
        """Take no more requests; those that run have `grace_seconds`."""
        self.phase = "draining"
        self.drain_end = time.monotonic() + grace_seconds

    def refusal(self) -> RequestError | None:
        """Why a new request can't be taken now; None if it can."""
        if self.phase == "loading":
            return RequestError(
                "the models are being loaded", code="loading", found=self.detail, retry_after=_LOADING_SECONDS
            )
        if self.phase == "draining":
            return RequestError(
                "the server is shutting down",
                code="shutting_down",
                retry_after=self.drain_end - time.monotonic(),
            )
        if self.shedding:
            return RequestError(
                "the server takes no new requests for now",
                code="overloaded",
                found=self.shedding,
                retry_after=_SHEDDING_SECONDS,
            )
        return None
