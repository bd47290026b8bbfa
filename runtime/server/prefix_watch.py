"""Watches how much of each prompt the prefix cache had, and says why where it was little."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from prometheus_client import Counter

from gristmill.runtime.engine import EngineRequest
from gristmill.runtime.outputs import OutputDelta, PromptProgress
from gristmill.runtime.prefix_causes import CAUSES
from gristmill.runtime.prefix_diagnosis import Divergence, PromptHistory
from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["PrefixReport", "PrefixWatch", "prefix_headers"]

_SECONDS_BETWEEN_LINES = 60.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PrefixReport:
    """What the prefix cache had of a prompt; `divergence` where a recent prompt explains a poor hit.

    `salted` says that only those who share a key or a cache salt could have sent the recent one.
    """

    progress: PromptProgress
    divergence: Divergence | None
    salted: bool


class PrefixWatch:
    """Diagnoses one model's prompts as they begin to run, on a thread of its own; an `EngineObserver`.

    Divergences are counted by cause. What stood in a prompt goes to the log at
    debug level only; the warning, at most one a minute, names the place and the kind.
    """

    def __init__(self, name: str, tokenizer: Tokenizer, divergences: Counter) -> None:
        self._name = name
        self._history = PromptHistory(tokenizer)
        self._divergences = {cause: divergences.labels(name, cause) for cause in CAUSES}
        self._thread = ThreadPoolExecutor(1, "gristmill-prefix")
        self._unread: dict[str, EngineRequest] = {}
        self._asked: dict[str, asyncio.Future[PrefixReport | None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._quiet_until = 0.0
        self._num_untold = 0

    def submitted(self, request_id: str, request: EngineRequest, now: float) -> None:
        """Wait for a prompt to begin to run."""
        self._unread[request_id] = request

    def progressed(self, deltas: Sequence[OutputDelta], started: float, ended: float) -> None:
        """Take the prompts that began to run in this step, and those that ended before they could."""
        for delta in deltas:
            if delta.progress is None and delta.finish_reason is None:
                continue
            request = self._unread.pop(delta.request_id, None)
            if request is None:
                continue
            if delta.progress is None:
                self._answer(delta.request_id, None)
                continue
            task = asyncio.ensure_future(self._examine(delta.request_id, request, delta.progress, ended))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def ask(self, request_id: str) -> asyncio.Future[PrefixReport | None]:
        """The report on a prompt that was just submitted; None if it never runs."""
        self._asked[request_id] = asyncio.get_running_loop().create_future()
        return self._asked[request_id]

    async def _examine(
        self, request_id: str, request: EngineRequest, progress: PromptProgress, now: float
    ) -> None:
        divergence = None
        loop = asyncio.get_running_loop()
        try:
            divergence = await loop.run_in_executor(self._thread, self._compare, request, progress)
        finally:
            self._answer(request_id, PrefixReport(progress, divergence, bool(request.cache_salt)))
        if divergence is not None:
            self._divergences[divergence.cause].inc()
            self._log(progress, divergence, now)

    def _compare(self, request: EngineRequest, progress: PromptProgress) -> Divergence | None:
        salt, tokens = request.cache_salt, request.prompt_token_ids
        divergence = self._history.diagnose(salt, tokens, progress.cached)
        self._history.add(salt, tokens)
        return divergence

    def _answer(self, request_id: str, report: PrefixReport | None) -> None:
        asked = self._asked.pop(request_id, None)
        if asked is not None and not asked.done():
            asked.set_result(report)

    def _log(self, progress: PromptProgress, divergence: Divergence, now: float) -> None:
        _logger.debug("%s: here %r, in the recent prompt %r", self._name, divergence.here, divergence.there)
        if now < self._quiet_until:
            self._num_untold += 1
            return
        _logger.warning(
            "%s: the prefix cache had %d of a prompt's %d tokens; a recent one that shares %.0f %% of its "
            "text is the same up to token %d (%s); %d more since the last such line",
            self._name,
            progress.cached,
            progress.total,
            100 * divergence.shared,
            divergence.position,
            divergence.cause,
            self._num_untold,
        )
        self._quiet_until = now + _SECONDS_BETWEEN_LINES
        self._num_untold = 0


def prefix_headers(report: PrefixReport | None) -> dict[str, str]:
    """A report as response headers; texts are JSON strings.

    The recent prompt may be someone else's where neither keys nor cache salts
    tell callers apart: then only the caller's own text is shown.
    """
    if report is None:
        return {}
    headers = {
        "X-Gristmill-Prefix-Tokens": str(report.progress.total),
        "X-Gristmill-Prefix-Cached": str(report.progress.cached),
    }
    if report.divergence is None:
        return headers
    headers["X-Gristmill-Prefix-Diverged-At"] = str(report.divergence.position)
    headers["X-Gristmill-Prefix-Cause"] = report.divergence.cause
    if report.divergence.here:
        headers["X-Gristmill-Prefix-Here"] = json.dumps(report.divergence.here)
    if report.divergence.there and report.salted:
        headers["X-Gristmill-Prefix-Recent"] = json.dumps(report.divergence.there)
    return headers
