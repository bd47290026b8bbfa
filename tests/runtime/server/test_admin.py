"""/admin and /info: reset, reload, stats, and what the server says of itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

import httpx

from gristmill.runtime.core.cost_model import COSTS
from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.errors import IntegrityError
from gristmill.runtime.server.models import LoadedModel
from gristmill.runtime.server.settings import ServerSettings

MakeEngine = Callable[..., LLMEngine]
Serve = Callable[..., Any]
ADMIN = {"Authorization": "Bearer t"}
SETTINGS = ServerSettings(admin_token="t")
PROMPT = "the same beginning of every prompt\n"


def complete(url: str, **changes: Any) -> httpx.Response:
    body = {"model": "m", "prompt": PROMPT, "temperature": 0, "max_tokens": 50} | changes
    return httpx.post(f"{url}/v1/completions", json=body, timeout=30)


def post(url: str, path: str, body: Any = None) -> httpx.Response:
    return httpx.post(f"{url}/admin/{path}", json=body, headers=ADMIN, timeout=30)


def stats(url: str) -> Any:
    return httpx.get(f"{url}/admin/stats", headers=ADMIN).json()


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


def test_a_reset_forgets_cached_prefixes(make_engine: MakeEngine, serve: Serve) -> None:
    url = serve(settings=SETTINGS, m=make_engine("parrot"), other=make_engine("parrot")).url
    complete(url)
    assert stats(url)["models"][0]["stats"]["num_cached_blocks"] > 0
    assert post(url, "cache/reset", {"model": "m"}).json() == {"status": "reset", "models": ["m"]}
    assert stats(url)["models"][0]["stats"]["num_cached_blocks"] == 0
    assert post(url, "cache/reset").json()["models"] == ["m", "other"]


def test_stats_hold_counts_settings_and_memory(make_engine: MakeEngine, serve: Serve) -> None:
    found = stats(serve(settings=SETTINGS, m=make_engine(max_num_seqs=3)).url)
    (model,) = found["models"]
    assert model["settings"]["max_num_seqs"] == 3
    assert model["stats"]["num_running"] == model["stats"]["kv_cache_usage"] == 0
    assert found["memory"]["resident"] > 1 << 20


def test_stats_hold_what_the_scheduler_learned_of_steps(make_engine: MakeEngine, serve: Serve) -> None:
    url = serve(settings=SETTINGS, m=make_engine()).url
    before = stats(url)["models"][0]["step_costs_s"]
    complete(url)
    after = stats(url)["models"][0]["step_costs_s"]
    assert set(after) == set(COSTS)
    assert after != before
    assert all(seconds >= 0 for seconds in after.values())


def test_the_version_is_told_as_vllm_tells_it(make_engine: MakeEngine, serve: Serve) -> None:
    assert httpx.get(f"{serve(m=make_engine()).url}/version").json() == {"version": version("gristmill")}


def test_a_model_is_replaced_while_the_old_one_finishes(make_engine: MakeEngine, serve: Serve) -> None:
    gate = threading.Event()
    old, new = make_engine("parrot", gate=gate), make_engine("hash")
    options = {"reload": lambda name: LoadedModel(name, new, digest="sha256:new")}
    url = serve(settings=SETTINGS, options=options, m=old).url
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(complete, url)
        wait_until(lambda: old.stats().num_running == 1)
        answer = post(url, "reload", {"model": "m"})
        assert answer.json() == {
            "status": "reloaded",
            "model": "m",
            "digest": "sha256:new",
            "replaced": None,
        }
        assert complete(url).json()["choices"][0]["text"] != PROMPT.rstrip()
        assert stats(url)["retiring"] == ["m"]
        gate.set()
        assert running.result().json()["choices"][0]["text"] == PROMPT.rstrip()
    wait_until(lambda: stats(url)["retiring"] == [])


def test_a_reload_that_fails_leaves_the_old_model_serving(make_engine: MakeEngine, serve: Serve) -> None:
    def damaged(name: str) -> LoadedModel:
        raise IntegrityError("the golden logits differ")

    url = serve(settings=SETTINGS, options={"reload": damaged}, m=make_engine("parrot")).url
    answer = post(url, "reload", {"model": "m"})
    assert answer.status_code == 500
    assert "the golden logits differ" in answer.json()["error"]["message"]
    assert complete(url).json()["choices"][0]["text"] == PROMPT.rstrip()


def test_a_model_that_is_not_served_can_not_be_reloaded(make_engine: MakeEngine, serve: Serve) -> None:
    options = {"reload": lambda name: LoadedModel(name, make_engine())}
    url = serve(settings=SETTINGS, options=options, m=make_engine()).url
    assert post(url, "reload", {"model": "other"}).status_code == 404
    assert post(url, "reload", {}).status_code == 400


def test_two_reloads_at_once_are_one_too_many(make_engine: MakeEngine, serve: Serve) -> None:
    gate = threading.Event()

    def slow(name: str) -> LoadedModel:
        assert gate.wait(10)
        return LoadedModel(name, make_engine())

    url = serve(settings=SETTINGS, options={"reload": slow}, m=make_engine()).url
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(post, url, "reload", {"model": "m"}) for _ in range(2)]
        wait_until(lambda: any(answer.done() for answer in both))
        gate.set()
    assert sorted(answer.result().status_code for answer in both) == [200, 409]


def test_a_server_that_drains_loads_no_model(make_engine: MakeEngine, serve: Serve) -> None:
    gate = threading.Event()
    engine = make_engine("parrot", gate=gate)
    options = {"reload": lambda name: LoadedModel(name, make_engine())}
    server = serve(settings=SETTINGS, options=options, m=engine)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(complete, server.url)
        wait_until(lambda: engine.stats().num_running == 1)
        server.stop()
        wait_until(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
        answer = post(server.url, "reload", {"model": "m"})
        gate.set()
        assert running.result().status_code == 200
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
