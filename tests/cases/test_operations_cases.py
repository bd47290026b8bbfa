"""Cases from the field on starting, watching and ending a server; ids as in the list of cases."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.errors import InputError, OutsideError
from gristmill.runtime.llm import load_engine
from gristmill.runtime.machine import CpuLimits, oversubscription
from gristmill.runtime.memory import FreeMemory
from gristmill.runtime.server.keys import parse_api_key
from gristmill.runtime.server.models import LoadedModel
from gristmill.runtime.server.settings import ServerSettings
from gristmill.runtime.settings import EngineSettings

MakeEngine = Callable[..., LLMEngine]
Serve = Callable[..., Any]
BODY: dict[str, Any] = {"model": "m", "prompt": "hello\n", "temperature": 0, "max_tokens": 60}
MIB = 1 << 20


def post(url: str, key: str = "", **changes: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.post(f"{url}/v1/completions", json=BODY | changes, headers=headers, timeout=30)


def get(url: str, path: str) -> tuple[int, Any]:
    response = httpx.get(f"{url}{path}")
    return response.status_code, response.json()


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


@pytest.fixture
def folder(tiny_llama: Path) -> EngineFolder:
    return EngineFolder("tiny", "reference", tiny_llama, tiny_llama)


def test_c01_the_flag_that_the_error_names_starts_the_model(folder: EngineFolder) -> None:
    lines: list[str] = []
    settings = EngineSettings(memory_bytes=260 * MIB)
    with pytest.raises(InputError, match=r"weights .* work space .* cache .* would fit") as caught:
        load_engine(folder, settings, report=lines.append)
    fits = re.findall(r"--memory (\d+)MiB", str(caught.value))
    assert len(fits) == 1
    load_engine(folder, replace(settings, memory_bytes=int(fits[0]) * MIB), report=lines.append).close()
    table = [line.split()[0] for line in lines]
    assert table[:2] == ["memory", "weights"]
    assert {"work", "KV", "left"} <= set(table)


@contextmanager
def neighbour(megabytes: int) -> Iterator[None]:
    """Another process holds so much memory meanwhile."""
    script = f"held = b'x' * ({megabytes} << 20); print('ready', flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
        process.kill()


def test_c02_the_cache_is_sized_by_what_is_free_and_the_others_are_named(folder: EngineFolder) -> None:
    with neighbour(512), pytest.raises(OutsideError, match="others hold ") as caught:
        load_engine(folder, free=FreeMemory(100 * MIB, "available on this machine"))
    named = re.findall(r"\(pid (\d+)\) ([\d,]+) MiB", str(caught.value))
    assert named
    assert str(psutil.Process().pid) not in {pid for pid, _ in named}


def test_c05_more_threads_than_the_container_has_processors_are_warned_of() -> None:
    limits = CpuLimits(installed=64, allowed=8, quota=2.0)
    warning = oversubscription(8, limits)
    assert warning is not None
    assert "8 threads for 2 processors (64 installed, 8 allowed, quota 2.0)" in warning
    assert oversubscription(2, limits) is None
    assert oversubscription(None, limits) is None


def test_c06_the_server_says_what_executes_it(make_engine: MakeEngine, serve: Serve) -> None:
    _, info = get(serve(m=make_engine()).url, "/info")
    (model,) = info["models"]
    assert info["cores"]["effective"] >= 1
    assert model["engine"]["executor"] == "cache-model"
    assert model["settings"]["max_num_seqs"] == 32
    assert {"version", "python", "processor", "container_memory_limit"} <= set(info)


def test_c14_the_queue_is_bounded_by_prompt_tokens_too(make_engine: MakeEngine, serve: Serve) -> None:
    gate = threading.Event()
    engine = make_engine("parrot", gate=gate, max_num_seqs=1, max_waiting_tokens=100)
    server = serve(m=engine)
    long = "x" * 59 + "\n"
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(post, server.url)
        wait_until(lambda: engine.stats().num_running == 1)
        second = pool.submit(post, server.url, prompt=long)
        wait_until(
            lambda: 'num_tokens_waiting{model_name="m"} 60.0' in httpx.get(f"{server.url}/metrics").text
        )
        refused = post(server.url, prompt=long)
        gate.set()
        assert [first.result().status_code, second.result().status_code] == [200, 200]
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
    assert "60 prompt tokens waiting and 60 more" in refused.json()["error"]["message"]
    assert int(refused.headers["retry-after"]) >= 1


def test_c15_the_log_tells_who_was_preempted_and_what_it_cost(
    make_engine: MakeEngine, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gristmill.requests")
    engine = make_engine(num_blocks=64, block_size=4, max_num_seqs=4, delay=0.002)
    server = serve(m=engine)

    def ask(name: str) -> httpx.Response:
        return post(server.url, prompt=name * 90, max_tokens=150, ignore_eos=True)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, "abcd"))
    assert [answer.status_code for answer in answers] == [200] * 4

    def told() -> list[Any]:
        return [vars(record)["fields"] for record in caplog.records if record.name == "gristmill.requests"]

    wait_until(lambda: len(told()) == 4)
    assert sum(line["preemptions"] for line in told()) == engine.stats().num_preemptions > 0
    assert sum(line["recomputed_tokens"] for line in told()) == engine.stats().num_recomputed > 0


def test_c20_a_step_that_never_ends_makes_health_fail_while_it_answers(
    make_engine: MakeEngine, serve: Serve
) -> None:
    gate = threading.Event()
    stuck, other = make_engine("parrot", gate=gate), make_engine("parrot")
    server = serve(settings=ServerSettings(stall_seconds=0.2), m=stuck, other=other)
    assert get(server.url, "/health")[0] == 200
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(post, server.url)
        wait_until(lambda: get(server.url, "/health")[0] == 503)
        health = get(server.url, "/health")[1]
        assert list(health["models"]) == ["m"]
        assert health["models"]["m"]["status"] == "stalled"
        assert health["models"]["m"]["seconds"] >= health["models"]["m"]["limit"] == 0.2  # rounded
        gate.set()
        assert running.result().status_code == 200
    wait_until(lambda: get(server.url, "/health")[0] == 200)


def test_c20_the_control_plane_answers_before_a_long_step_ends(make_engine: MakeEngine, serve: Serve) -> None:
    gate = threading.Event()
    engine = make_engine("parrot", gate=gate, num_blocks=1024, max_num_batched_tokens=4096)
    server = serve(m=engine)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(post, server.url, prompt="x" * 3999 + "\n", max_tokens=1)
        wait_until(lambda: engine.stats().num_running == 1)
        answers = [httpx.get(f"{server.url}{path}") for path in ("/health", "/ready", "/metrics", "/info")]
        assert [answer.status_code for answer in answers] == [200] * 4
        assert not running.done()
        gate.set()
        assert running.result().status_code == 200


def test_c21_new_requests_get_503_while_twenty_streams_finish(make_engine: MakeEngine, serve: Serve) -> None:
    gate = threading.Event()
    engine = make_engine("parrot", gate=gate, num_blocks=512, max_num_seqs=20)
    server = serve(m=engine)
    with ThreadPoolExecutor(20) as pool:
        streams = [pool.submit(post, server.url, stream=True) for _ in range(20)]
        wait_until(lambda: len(server_open(server.url)) == 20)
        server.stop()
        wait_until(lambda: get(server.url, "/ready")[0] == 503)
        refused = post(server.url)
        assert get(server.url, "/health")[0] == 200
        gate.set()
        assert all(stream.result().text.endswith("data: [DONE]\n\n") for stream in streams)
    assert refused.status_code == 503
    assert {"retry-after", "connection"} <= set(refused.headers)
    server.join()


def server_open(url: str) -> range:
    """As many as answers run and wait."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    names = ("gristmill:num_requests_running{", "gristmill:num_requests_waiting{")
    return range(int(sum(float(line.split()[-1]) for line in lines if line.startswith(names))))


def test_c23_a_server_that_loads_is_alive_and_says_what_it_loads(
    make_engine: MakeEngine, serve: Serve
) -> None:
    gate = threading.Event()

    def load(tell: Callable[[str], None]) -> list[LoadedModel]:
        tell("loading m (1 of 1)")
        assert gate.wait(30)
        return [LoadedModel("m", make_engine("parrot"))]

    server = serve(load=load)
    assert get(server.url, "/health") == (200, {"status": "loading"})
    wait_until(lambda: get(server.url, "/ready")[1]["phase"] != "the models are being loaded")
    assert get(server.url, "/ready") == (503, {"status": "loading", "phase": "loading m (1 of 1)"})
    early = post(server.url)
    assert (early.status_code, early.json()["error"]["code"]) == (503, "loading")
    assert int(early.headers["retry-after"]) >= 1
    assert httpx.get(f"{server.url}/metrics").status_code == 200
    gate.set()
    wait_until(lambda: get(server.url, "/ready")[0] == 200)
    assert post(server.url).json()["choices"][0]["text"] == "hello"


def test_c41_tenants_share_no_cached_prefix(make_engine: MakeEngine, serve: Serve) -> None:
    settings = ServerSettings(api_keys=(parse_api_key("a:one"), parse_api_key("b:two")))
    server = serve(settings=settings, m=make_engine("parrot", num_blocks=256))
    prompt = "a system prompt that everyone has\n"

    def cached(key: str, **changes: Any) -> int:
        usage = post(server.url, key, prompt=prompt, max_tokens=1, **changes).json()["usage"]
        return int((usage["prompt_tokens_details"] or {}).get("cached_tokens", 0))

    assert cached("one") == 0
    assert cached("one") > 0
    assert cached("two") == 0
    assert cached("two") > 0
    assert cached("two", cache_salt="mine") == 0


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("POST", "/apply-template"),
        ("POST", "/score"),
        ("POST", "/reset_prefix_cache"),
        ("GET", "/info"),
        ("GET", "/version"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
        ("POST", "/v1/embeddings"),
    ],
)
def test_c46_nothing_is_open_beside_the_keys(locked_url: str, method: str, path: str) -> None:
    assert httpx.request(method, f"{locked_url}{path}", json={}).status_code == 401


@pytest.mark.parametrize("path", ["/admin/cache/reset", "/admin/reload"])
def test_c46_a_key_opens_no_admin_path(locked_url: str, path: str) -> None:
    assert httpx.post(f"{locked_url}{path}", headers={"Authorization": "Bearer one"}).status_code == 401


@pytest.fixture(scope="module")
def locked_url(make_engine: MakeEngine, run_server_thread: Callable[..., Any]) -> Any:
    settings = ServerSettings(api_keys=(parse_api_key("one"),), admin_token="t")
    with run_server_thread(settings=settings, m=make_engine("parrot")) as server:
        yield server.url
