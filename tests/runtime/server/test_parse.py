"""A body that never ends, or says that it will be too long, is refused and not waited for."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import pytest
from starlette.requests import Request

from gristmill.runtime.errors import RequestError
from gristmill.runtime.server.errors import status_of
from gristmill.runtime.server.parse import MAX_BODY_BYTES, read_object


async def never() -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError("an event that nobody sets was set")


def refusal_of(*headers: tuple[bytes, bytes], **options: Any) -> RequestError:
    """The error for a request that sends these headers and then nothing."""
    request = Request({"type": "http", "method": "POST", "headers": list(headers)}, never)
    with pytest.raises(RequestError) as refused:
        asyncio.run(asyncio.wait_for(read_object(request, **options), 10))
    return refused.value


def test_a_body_that_does_not_arrive_is_given_up() -> None:
    refusal = refusal_of(seconds=0.01)
    assert status_of(refusal) == 408
    assert refusal.line() == "the request body does not arrive; found less than all of it after 0.01 s"


def test_the_end_of_the_server_ends_the_wait_for_a_body() -> None:
    async def read_and_cancel() -> None:
        request = Request({"type": "http", "method": "POST", "headers": []}, never)
        reading = asyncio.create_task(read_object(request))
        await asyncio.sleep(0)
        reading.cancel()
        await reading

    with pytest.raises(RequestError, match="the server is shutting down") as refused:
        asyncio.run(read_and_cancel())
    assert status_of(refused.value) == 503


def test_a_body_that_says_it_is_too_long_is_refused_before_it_is_read() -> None:
    assert status_of(refusal_of((b"content-length", b"%d" % (MAX_BODY_BYTES + 1)))) == 413


def parsed(body: bytes, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    request = Request({"type": "http", "method": "POST", "headers": list(headers)}, receive)
    return asyncio.run(read_object(request))


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"", "nothing"),
        (b"\x1f\x8b\x08", "byte 1, which is not UTF-8"),
        (b"[" * 100_000, "too many lists or objects within each other"),
        (b'{"n": ' + b"9" * 5000 + b"}", "a number of thousands of digits"),
        (b'{"n": NaN}', "NaN is not JSON"),
        (b'{"n": 1, "m": 2, "n": 3}', "'n' stands there twice"),
        (b'{"a": [{"n": 1, "n": 1}]}', "'n' stands there twice"),
        (b"[1, null]", "[1, null]"),
    ],
)
def test_a_body_that_is_no_json_object_is_told_without_a_librarys_words(body: bytes, found: str) -> None:
    with pytest.raises(RequestError) as refused:
        parsed(body)
    assert (refused.value.code, refused.value.found) == ("invalid_json", found)


def test_a_compressed_body_is_refused_as_such_and_identity_is_none() -> None:
    with pytest.raises(RequestError, match="compressed") as refused:
        parsed(b"{}", (b"content-encoding", b"gzip"))
    assert status_of(refused.value) == 415
    assert parsed(b"{}", (b"content-encoding", b"identity")) == {}
