"""A load test against servers of other kinds: what it asks, what it counts, what it says of failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.errors import InputError, OutsideError
from gristmill.runtime.loadtest.records import Record
from gristmill.runtime.loadtest.session import LoadTest
from gristmill.runtime.loadtest.workload import Shape, Workload
from tests.fake_peer import FakePeer, running_peer

Start = Callable[..., FakePeer]

CLOSED = Workload((Shape(20, 4),), concurrency=2, requests=6)


@pytest.fixture
def start() -> Iterator[Start]:
    """Peers for one test; arguments as of FakePeer."""
    with ExitStack() as stack:
        yield lambda **how: stack.enter_context(running_peer(FakePeer(**how)))


def measure(peer: FakePeer, workload: Workload = CLOSED, **how: Any) -> dict[str, Any]:
    (run,) = LoadTest(peer.url, **{"warmup": 0, **how}).run([workload])
    return run


def test_every_request_has_the_asked_lengths(start) -> None:
    peer = start()
    run = measure(peer)
    assert (run["requests"], run["errors"]) == (6, 0)
    assert (run["prompt_tokens"], run["output_tokens"]) == (6 * 20, 6 * 4)
    assert all(body["ignore_eos"] and body["stream_options"] for body in peer.streams)


def test_our_server_is_measured_like_any_other(serve, make_engine: Callable[..., LLMEngine]) -> None:
    server = serve(model=make_engine("hash", num_blocks=256))
    (run,) = LoadTest(server.url, warmup=2).run([CLOSED])
    assert (run["requests"], run["errors"], run["output_tokens"]) == (6, 0, 24)
    assert run["tokens_counted_by"] == "usage"
    assert 0.7 < run["prompt_tokens"] / 120 < 1.4  # bytes are tokens there, and words have several


def test_a_server_without_ignore_eos_is_asked_without_it(start) -> None:
    peer = start(fields=FakePeer().fields - {"ignore_eos"}, longest_answer=2)
    run = measure(peer)
    assert run["errors"] == 0
    assert run["output_tokens"] == 6 * 2
    assert not any("ignore_eos" in body for body in peer.bodies)


def test_a_server_without_usage_in_streams_has_its_pieces_counted(start) -> None:
    peer = start(fields=FakePeer().fields - {"stream_options"})
    run = measure(peer)
    assert run["output_tokens"] == 24
    assert run["tokens_counted_by"] == "pieces of text"


def test_a_server_that_tells_no_lengths_gets_token_ids(start) -> None:
    peer = start(tells_usage=False)
    with pytest.raises(InputError, match="--token-ids"):
        measure(peer)
    assert measure(peer, token_ids=True)["errors"] == 0
    assert len(peer.bodies[-1]["prompt"]) == 20


def test_a_server_that_closes_each_connection_is_measured(start) -> None:
    assert measure(start(keep_alive=False))["errors"] == 0


def test_connections_are_kept(start) -> None:
    peer = start()
    assert measure(peer)["errors"] == 0
    assert peer.connections <= 2


@pytest.mark.parametrize(
    ("fault", "kind", "detail"),
    [
        ("status", "http 429", "too many"),
        ("error", "error in the stream", "it burns"),
        ("break", "connection", "broke off"),
        ("garbage", "no JSON", ""),
        *(
            (piece, "no JSON", "")
            for piece in ("list", "number", "usage", "counts", "choices", "choice", "deep")
        ),
        ("empty", "no text", "empty"),
    ],
)
def test_a_failed_request_is_counted_by_its_kind_and_the_others_go_on(start, fault, kind, detail) -> None:
    run = measure(start(faults=[fault]))
    assert (run["requests"], run["errors"]) == (6, 1)
    assert run["errors_by_kind"] == {kind: 1}
    assert detail in run["first_errors"][kind]
    assert run["output_tokens"] == 5 * 4


def test_a_request_without_end_is_given_up(start) -> None:
    run = measure(start(faults=["slow"]), timeout=0.5)
    assert run["errors_by_kind"] == {"timeout": 1}


def test_a_dead_address_is_one_line(start) -> None:
    with pytest.raises(OutsideError, match=r"can't reach http://127\.0\.0\.1:1"):
        LoadTest("http://127.0.0.1:1").run([CLOSED])


def test_a_wrong_model_is_answered_with_those_that_exist(start) -> None:
    with pytest.raises(InputError, match="found other; expected peer or second"):
        measure(start(models=("peer", "second")), model="other")


def test_of_several_models_one_must_be_named(start) -> None:
    with pytest.raises(InputError, match="expected peer or second"):
        measure(start(models=("peer", "second")))


def test_a_server_without_a_list_of_models_is_believed(start) -> None:
    assert measure(start(models=None), model="any")["errors"] == 0


def test_a_refused_key_is_told(start) -> None:
    peer = start(key="secret")
    with pytest.raises(InputError, match="no such key; --api-key"):
        measure(peer)
    assert measure(peer, api_key="secret")["errors"] == 0


def test_warm_up_is_not_counted_and_has_other_prompts(start) -> None:
    peer = start()
    assert measure(peer, warmup=3)["requests"] == 6
    prompts = [body["prompt"] for body in peer.streams]
    assert len(set(prompts)) == len(prompts) == 9


def test_an_open_loop_does_not_wait_for_answers(start) -> None:
    peer = start(delay=0.2)
    run = measure(peer, Workload((Shape(8, 2),), rate=200.0, requests=10))
    assert run["errors"] == 0
    assert peer.times[-1] - peer.times[-10] < 0.2
    assert run["ttft_ms"]["p50"] >= 200


def test_a_duration_ends_the_sending(start) -> None:
    run = measure(start(delay=0.01), Workload((Shape(8, 2),), concurrency=2, duration_s=0.3))
    assert 2 < run["requests"] < 200
    assert run["duration_s"] < 2


def test_a_connection_that_the_server_closed_is_opened_again(start) -> None:
    peer = start(idle_seconds=0.05)

    async def ask_after_a_pause() -> Record:
        client, _ = await LoadTest(peer.url).connect()
        await asyncio.sleep(0.3)
        record = await client.complete("again", 2)
        client.close()
        return record

    assert asyncio.run(ask_after_a_pause()).error is None
    assert peer.connections >= 2  # a slow machine may have paused before, too
