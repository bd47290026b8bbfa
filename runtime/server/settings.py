"""What is chosen for a server, beside what is chosen for its engines."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gristmill.runtime.errors import InputError
from gristmill.runtime.server.cors import check_origin
from gristmill.runtime.server.keys import ApiKey
from gristmill.runtime.server.logs import LogFormat, LogLevel

__all__ = ["ServerSettings"]


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Raises InputError for a value that can't be meant.

    host, port           where to listen; port 0 takes a free one
    grace_seconds        what running requests get after a signal
    ping_seconds         the longest silence of a stream: a request that waits sends a comment
    head_seconds         the headers of a request arrive within this, or its connection is closed
    stall_seconds        work that stands still for so long makes /health fail
    api_keys             who may ask; none for everyone
    admin_token          opens /admin; None closes it
    max_open_per_tenant  open requests of one API key
    cors_origins         origins whose web pages may ask, such as https://app.example; "*" for all
    memory_soft          bytes in use above which new requests are turned away; None derives it from the
                         limit, if there is one
    memory_restart       bytes in use above which the server drains and ends, likewise
    log_format           lines for people, or JSON
    log_level            the least that is logged
    """

    host: str = "127.0.0.1"
    port: int = 8000
    grace_seconds: float = 30.0
    ping_seconds: float = 10.0
    head_seconds: float = 30.0
    stall_seconds: float = 30.0
    api_keys: tuple[ApiKey, ...] = ()
    admin_token: str | None = field(default=None, repr=False)
    max_open_per_tenant: int | None = None
    cors_origins: tuple[str, ...] = ()
    memory_soft: int | None = None
    memory_restart: int | None = None
    log_format: LogFormat = "text"
    log_level: LogLevel = "info"

    def __post_init__(self) -> None:
        if not 0 <= self.grace_seconds < math.inf:
            raise InputError("grace_seconds is invalid", found=self.grace_seconds, expected="0 or more")
        for name in ("ping_seconds", "head_seconds", "stall_seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} is invalid", found=getattr(self, name), expected="more than 0")
        for name in ("max_open_per_tenant", "memory_soft", "memory_restart"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is invalid", found=value, expected="at least 1")
        for origin in self.cors_origins:
            check_origin(origin)
        if self.admin_token == "":
            raise InputError("admin_token is empty", expected="a token, or none to close /admin")
        if self.memory_soft and self.memory_restart and self.memory_soft > self.memory_restart:
            raise InputError(
                "memory_soft is more than memory_restart",
                found=self.memory_soft,
                expected=f"at most {self.memory_restart}",
            )
