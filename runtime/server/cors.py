"""Which web pages may ask the server: a browser hands them only an answer that says so."""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.types import ASGIApp

from gristmill.runtime.errors import InputError

__all__ = ["allow_origins", "check_origin"]

_ANY = "*"
_HOST = r"(?:[a-z\d._-]+|\[[\da-f:.]+\])"
_ORIGIN = re.compile(rf"(?!http:.*:80\Z|https:.*:443\Z)[a-z][a-z\d+.-]*://{_HOST}(?::\d{{1,5}})?", re.ASCII)


def check_origin(origin: str) -> None:
    """Raise InputError for what no browser sends as `Origin`: it would be compared in vain."""
    if origin != _ANY and not _ORIGIN.fullmatch(origin):
        raise InputError(
            "cors_origins is invalid",
            found=origin,
            expected="scheme://host or scheme://host:port as browsers send it, or * for all",
            hint="leave out path, closing slash, capitals and the scheme's own port",
        )


def allow_origins(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """The application, whose answers and errors pages of these origins may read; preflights never reach it.

    Only the start of a response passes here, so that streams keep their short way. Keys travel in a
    header that the page sets, never in what a browser adds by itself.
    """
    if not origins:
        return app
    from starlette.middleware.cors import CORSMiddleware  # only here: most servers have no such pages

    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST"),
        allow_headers=[_ANY],
        expose_headers=[_ANY],
    )
