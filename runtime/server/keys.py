"""API keys: who may ask, and under which tenant's name."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gristmill.runtime.errors import InputError

__all__ = ["ApiKey", "Keyring", "parse_api_key", "read_api_keys"]

_SCHEME = "bearer "
_SHOWN_DIGITS = 12


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key by its SHA-256 digest; the key itself is not kept. Several keys may be one tenant's."""

    tenant: str
    digest: bytes = field(repr=False)


class Keyring:
    """The API keys and the admin token of one server. Raises InputError for a key of two tenants."""

    def __init__(self, keys: Iterable[ApiKey] = (), admin_token: str | None = None) -> None:
        self._keys = tuple(dict.fromkeys(keys))
        if admin_token is not None and not _fits_header(admin_token):
            raise InputError("the admin token is invalid", expected="ASCII characters without spaces")
        self._admin = None if admin_token is None else _digest(admin_token)
        if len({key.digest for key in self._keys}) < len(self._keys):
            raise InputError("an API key stands under two names", expected="each key once")
        if any(key.digest == self._admin for key in self._keys):
            raise InputError("the admin token is an API key too", expected="a token of its own")

    @property
    def has_keys(self) -> bool:
        """True when requests need a key."""
        return bool(self._keys)

    @property
    def has_admin_token(self) -> bool:
        """True when there is anyone who may use /admin."""
        return self._admin is not None

    def tenant(self, authorization: str) -> str | None:
        """The tenant of an `Authorization` header's key; None for no key or a wrong one.

        Compares with every key, each in constant time, so that the time tells nothing of them.
        """
        shown = _digest(_bearer(authorization))
        matches = [key.tenant for key in self._keys if hmac.compare_digest(key.digest, shown)]
        return matches[0] if matches else None

    def is_admin(self, authorization: str) -> bool:
        """True for a header with the admin token."""
        shown = _digest(_bearer(authorization))
        return self._admin is not None and hmac.compare_digest(self._admin, shown)


def parse_api_key(text: str) -> ApiKey:
    """A key from `name:key`, or from `key`, whose tenant is then called by its digest. Raises InputError."""
    name, colon, key = (part.strip() for part in text.partition(":"))
    if not colon:
        name, key = "", name
    if (colon and not name) or not _fits_header(key):
        raise InputError("an API key is invalid", expected="key or name:key, the key in ASCII without spaces")
    digest = _digest(key)
    return ApiKey(name or f"key-{digest.hex()[:_SHOWN_DIGITS]}", digest)


def read_api_keys(path: Path) -> Sequence[ApiKey]:
    """Keys from a file, one a line; empty lines and lines that begin with # count for nothing.

    Raises InputError.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"can't read the API keys in {path}", found=error) from error
    keys = [parse_api_key(line) for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise InputError(f"{path} has no API key", expected="a line with name:key or key")
    return keys


def _fits_header(secret: str) -> bool:
    """True for what clients can send as one word of a header and a server reads back as the same."""
    return bool(secret) and all("!" <= character <= "~" for character in secret)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).digest()


def _bearer(authorization: str) -> str:
    if authorization[: len(_SCHEME)].lower() == _SCHEME:
        return authorization[len(_SCHEME) :].strip()
    return ""
