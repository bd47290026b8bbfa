"""What a server can do, found by asking it: its model, the fields it knows, the length of words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gristmill.runtime.errors import InputError, OutsideError
from gristmill.runtime.loadtest.client import CompletionClient, error_message
from gristmill.runtime.loadtest.http import HttpError
from gristmill.runtime.loadtest.prompts import PromptMaker, TokenPrompts, calibrate_words

__all__ = ["probe_extras", "probe_model", "probe_prompts"]

_USAGE: Mapping[str, Any] = MappingProxyType({"stream_options": {"include_usage": True}})
_IGNORE_EOS: Mapping[str, Any] = MappingProxyType({"ignore_eos": True})
_EXTRAS: tuple[Mapping[str, Any], ...] = ({**_USAGE, **_IGNORE_EOS}, _USAGE, _IGNORE_EOS, {})


async def probe_model(client: CompletionClient, name: str | None) -> str:
    """The model to ask for: `name` if the server has it, else the only one it has.

    A server without /v1/models is believed to have `name`. Raises InputError, OutsideError.
    """
    status, data = await _ask(client, "GET", "/v1/models")
    if status in (401, 403):
        raise InputError(
            f"{client.endpoint.url} refuses the key", found=error_message(data), hint="--api-key"
        )
    try:
        known = [str(entry["id"]) for entry in json.loads(data)["data"]]
    except (KeyError, TypeError, ValueError, RecursionError):
        if name is not None:
            return name
        raise InputError(f"{client.endpoint.url} lists no models", hint="name one with --model") from None
    if name is None and len(known) == 1:
        return known[0]
    if name not in known:
        raise InputError(
            f"the model at {client.endpoint.url}",
            found=name or "none named",
            expected=" or ".join(known) or "a server with a model",
        )
    return name


async def probe_extras(client: CompletionClient) -> dict[str, Any]:
    """The fields to add to each request: those of token counts and fixed lengths that the server accepts.

    Raises InputError if it refuses a request without any of them, OutsideError.
    """
    status, data = 0, b""
    for extras in _EXTRAS:
        asked = {"model": client.model, "prompt": "the", "max_tokens": 1, "temperature": 0.0, "stream": True}
        status, data = await _ask(client, "POST", "/v1/completions", {**asked, **extras})
        if status == 200:
            return dict(extras)
        if status not in (400, 422):
            break
    raise InputError(
        f"{client.endpoint.url}/v1/completions answers {status}",
        found=error_message(data),
        expected="an OpenAI-compatible server with completions",
    )


async def probe_prompts(client: CompletionClient, *, token_ids: bool) -> PromptMaker:
    """What writes prompts for this server. Raises InputError if it tells no lengths, OutsideError."""
    if token_ids:
        return TokenPrompts()

    async def count(text: str) -> int:
        fields = {"model": client.model, "prompt": text, "max_tokens": 1}
        status, data = await _ask(client, "POST", "/v1/completions", fields)
        try:
            return int(json.loads(data)["usage"]["prompt_tokens"])
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f"{client.endpoint.url} does not tell the tokens of a prompt",
                found="no usage" if status == 200 else error_message(data),
                hint="--token-ids needs no lengths",
            ) from None

    return await calibrate_words(count)


async def _ask(
    client: CompletionClient, method: str, path: str, fields: Mapping[str, Any] | None = None
) -> tuple[int, bytes]:
    """A request whose failure is the server's address, not a measurement."""
    where = client.endpoint.url
    try:
        return await client.ask(method, path, fields)
    except TimeoutError as error:
        raise OutsideError(f"{where} does not answer", found=f"nothing in {client.timeout:g} s") from error
    except (OSError, HttpError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise OutsideError(f"can't reach {where}", found=said, hint="is the server running?") from error
