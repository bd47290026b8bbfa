"""Who asks: the middleware that knows a request's tenant or refuses it."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gristmill.runtime.errors import RequestError
from gristmill.runtime.server.errors import error_response
from gristmill.runtime.server.keys import Keyring
from gristmill.runtime.server.paths import METRICS, OPEN, is_admin

__all__ = ["Authentication"]


class Authentication:
    """Leaves the tenant in the request's state, empty where keys are off.

    With keys, every path but /health and /ready needs one, known or not;
    /metrics also takes the admin token. /admin needs the admin token and is closed to
    all where there is none.
    """

    def __init__(self, app: ASGIApp, keyring: Keyring) -> None:
        self._app = app
        self._keyring = keyring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401 or 403."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            tenant = self._tenant(scope["path"], Headers(scope=scope).get("authorization", ""))
        except RequestError as error:
            await error_response(error)(scope, receive, send)
            return
        scope.setdefault("state", {})["tenant"] = tenant
        await self._app(scope, receive, send)

    def _tenant(self, path: str, authorization: str) -> str:
        if is_admin(path):
            self._check_admin(authorization)
            return ""
        if not self._keyring.has_keys or path in OPEN:
            return ""
        tenant = self._keyring.tenant(authorization)
        if tenant is not None:
            return tenant
        if path == METRICS and self._keyring.is_admin(authorization):
            return ""
        raise RequestError(
            "the API key is wrong" if authorization else "an API key is missing",
            code="invalid_api_key",
            expected="a header Authorization: Bearer KEY",
        )

    def _check_admin(self, authorization: str) -> None:
        if not self._keyring.has_admin_token:
            raise RequestError(
                "/admin is closed",
                code="forbidden",
                hint="start the server with --admin-token or GRISTMILL_ADMIN_TOKEN",
            )
        if not self._keyring.is_admin(authorization):
            raise RequestError(
                "the admin token is wrong" if authorization else "the admin token is missing",
                code="invalid_api_key",
                expected="a header Authorization: Bearer TOKEN",
            )
