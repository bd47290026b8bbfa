"""Which paths ask the models for something, and which are about the server itself."""

from __future__ import annotations

__all__ = ["ADMIN", "HEALTH", "INFO", "METRICS", "OPEN", "READY", "VERSION", "is_admin", "is_control"]

HEALTH = "/health"
READY = "/ready"
METRICS = "/metrics"
INFO = "/info"
VERSION = "/version"
ADMIN = "/admin"
OPEN = frozenset({HEALTH, READY})  # answered without a key: a load balancer has none
_CONTROL = frozenset({HEALTH, READY, METRICS, INFO, VERSION})


def is_admin(path: str) -> bool:
    """True for what needs the admin token."""
    return path == ADMIN or path.startswith(f"{ADMIN}/")


def is_control(path: str) -> bool:
    """True for paths that are answered whatever the models do: while they load, drain or compute."""
    return path in _CONTROL or is_admin(path)
