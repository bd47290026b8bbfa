"""Who may ask for what: keys on every path, an admin token apart, errors in OpenAI's form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.server.keys import parse_api_key
from gristmill.runtime.server.settings import ServerSettings

SETTINGS = ServerSettings(
    api_keys=(parse_api_key("team:one"), parse_api_key("other:two")), admin_token="admin"
)


@pytest.fixture(scope="module")
def url(make_engine: Callable[..., LLMEngine], run_server_thread: Callable[..., Any]) -> Iterator[str]:
    with run_server_thread(settings=SETTINGS, m=make_engine("parrot")) as server:
        yield server.url


@pytest.fixture(scope="module")
def open_url(make_engine: Callable[..., LLMEngine], run_server_thread: Callable[..., Any]) -> Iterator[str]:
    with run_server_thread(m=make_engine("parrot")) as server:
        yield server.url


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_the_openai_client_is_served_with_a_key_and_told_without(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="one", max_retries=0) as client:
        assert client.completions.create(model="m", prompt="hi\n", temperature=0).choices[0].text == "hi"
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError, match="the API key is wrong") as caught,
    ):
        client.models.list()
    assert caught.value.code == "invalid_api_key"
    assert caught.value.response.headers["www-authenticate"] == "Bearer"


def test_every_path_but_health_and_ready_needs_a_key(url: str) -> None:
    paths = httpx.get(f"{url}/openapi.json", headers=bearer("one")).json()["paths"]
    found = {
        path: httpx.request(method.upper(), f"{url}{path}").status_code
        for path, methods in paths.items()
        for method in methods
    }
    assert {path for path, status in found.items() if status != 401} == {"/health", "/ready"}
    assert httpx.get(f"{url}/openapi.json").status_code == 401
    assert httpx.get(f"{url}/no/such/path").status_code == 401


def test_metrics_take_a_key_or_the_admin_token(url: str) -> None:
    statuses = [
        httpx.get(f"{url}/metrics", headers=bearer(key)).status_code for key in ("one", "admin", "no")
    ]
    assert statuses == [200, 200, 401]


def test_admin_takes_its_token_alone(url: str) -> None:
    statuses = [
        httpx.get(f"{url}/admin/stats", headers=bearer(key)).status_code for key in ("admin", "one", "no")
    ]
    assert statuses == [200, 401, 401]


def test_the_admin_token_opens_no_models(url: str) -> None:
    assert httpx.get(f"{url}/v1/models", headers=bearer("admin")).status_code == 401


def test_without_a_token_admin_is_open_to_nobody(open_url: str) -> None:
    response = httpx.get(f"{open_url}/admin/stats", headers=bearer("any"))
    assert response.status_code == 403
    assert "--admin-token" in response.json()["error"]["message"]


def test_without_keys_everyone_is_served(open_url: str) -> None:
    assert httpx.get(f"{open_url}/v1/models").status_code == 200
    assert httpx.get(f"{open_url}/v1/models", headers=bearer("anything")).status_code == 200


def test_a_key_may_have_so_many_open_requests_and_no_more(
    make_engine: Callable[..., LLMEngine], serve: Callable[..., Any]
) -> None:
    settings = ServerSettings(api_keys=SETTINGS.api_keys, max_open_per_tenant=1)
    server = serve(settings=settings, m=make_engine(delay=0.01))
    body = {"model": "m", "prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": True}
    short = body | {"max_tokens": 1, "stream": False}
    path = f"{server.url}/v1/completions"
    with httpx.stream("POST", path, json=body, headers=bearer("one")) as stream:
        lines = stream.iter_lines()
        next(lines)
        refused = httpx.post(path, json=short, headers=bearer("one"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "tenant_limit")
        assert int(refused.headers["retry-after"]) >= 1
        assert httpx.post(path, json=short, headers=bearer("two")).status_code == 200
