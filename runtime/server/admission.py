"""Whether a request may begin: the middleware that counts what is open and turns the rest away."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Set

from starlette.types import ASGIApp, Receive, Scope, Send

from gristmill.runtime.errors import RequestError
from gristmill.runtime.server.errors import error_response
from gristmill.runtime.server.lifecycle import Lifecycle
from gristmill.runtime.server.paths import is_control

__all__ = ["Admission", "OpenRequests"]

_POLL_SECONDS = 0.01


class OpenRequests:
    """The requests that have begun and not ended, by number and tenant; lives on the event loop."""

    def __init__(self) -> None:
        self._open: dict[int, str] = {}
        self._by_tenant: Counter[str] = Counter()
        self._num_begun = 0

    def __len__(self) -> int:
        return len(self._open)

    def of_tenant(self, tenant: str) -> int:
        """How many are this tenant's."""
        return self._by_tenant[tenant]

    def begin(self, tenant: str) -> int:
        """Count one more; the number is for `end`."""
        self._num_begun += 1
        self._open[self._num_begun] = tenant
        self._by_tenant[tenant] += 1
        return self._num_begun

    def end(self, number: int) -> None:
        """Count it as ended."""
        tenant = self._open.pop(number)
        self._by_tenant[tenant] -= 1
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]

    async def wait_for_present(self, deadline: float) -> bool:
        """Wait for those that are open now; False if some still are at the monotonic time `deadline`."""
        present: Set[int] = frozenset(self._open)
        while not present.isdisjoint(self._open):
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return True


class Admission:
    """Refuses requests while models load, when the server drains or sheds load, and above a tenant's cap.

    `retry_after` tells seconds until the engines have room. Paths about the
    server itself are neither refused nor counted.
    """

    def __init__(
        self,
        app: ASGIApp,
        lifecycle: Lifecycle,
        requests: OpenRequests,
        *,
        max_open_per_tenant: int | None,
        retry_after: Callable[[], float],
    ) -> None:
        self._app = app
        self._lifecycle = lifecycle
        self._requests = requests
        self._max_open_per_tenant = max_open_per_tenant
        self._retry_after = retry_after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and count it while it is open, or answer 429 or 503."""
        if scope["type"] != "http" or is_control(scope["path"]):
            await self._app(scope, receive, send)
            return
        tenant = scope["state"]["tenant"]
        refusal = self._lifecycle.refusal() or self._over_cap(tenant)
        if refusal is not None:
            response = error_response(refusal)
            if self._lifecycle.phase == "draining":
                response.headers["Connection"] = "close"
            await response(scope, receive, send)
            return
        number = self._requests.begin(tenant)
        try:
            await self._app(scope, receive, send)
        finally:
            self._requests.end(number)

    def _over_cap(self, tenant: str) -> RequestError | None:
        cap = self._max_open_per_tenant
        if not tenant or cap is None or self._requests.of_tenant(tenant) < cap:
            return None
        return RequestError(
            "this API key has too many open requests",
            code="tenant_limit",
            found=f"{self._requests.of_tenant(tenant)} open",
            expected=f"at most {cap}",
            retry_after=self._retry_after(),
        )
