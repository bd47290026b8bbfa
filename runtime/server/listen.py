"""The address of a server, taken before anything is loaded."""

from __future__ import annotations

import socket

from gristmill.runtime.errors import InputError, ListenError

__all__ = ["bind", "listen", "url_of"]

_BACKLOG = 2048
_MAX_PORT = 65535


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address, not yet listening. Raises InputError for no port, ListenError."""
    if not 0 <= port <= _MAX_PORT:
        raise InputError("the port is invalid", found=port, expected=f"0 to {_MAX_PORT}, 0 for any free one")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ListenError(f"can't resolve the host {host!r}", found=error.strerror) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


def listen(listener: socket.socket) -> None:
    """Let clients connect. Raises ListenError if the address was taken in the meantime."""
    host, port = listener.getsockname()[:2]
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error


def url_of(listener: socket.socket) -> str:
    """The base URL of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"


def _cannot_listen(host: str, port: int, error: OSError) -> ListenError:
    return ListenError(
        f"can't listen at {host}:{port}",
        found=error.strerror,
        hint="choose another --port, or 0 for a free one",
    )
