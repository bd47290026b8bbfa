"""`gristmill bench`: what is refused, what is printed, what is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_peer import FakePeer, running_peer

SHORT = ("--requests", 4, "--prompt-tokens", 8, "--output-tokens", 3, "--warmup", 0)
CONTRACT = {
    "requests",
    "errors",
    "duration_s",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "ttft_ms",
    "tpot_ms",
    "itl_ms",
    "goodput_rps",
    "cost_per_million_tokens",
    "client_cpu_share",
    "environment",
}


@pytest.fixture
def peer() -> Iterator[FakePeer]:
    """A server that answers."""
    with running_peer(FakePeer()) as running:
        yield running


def test_one_load_is_an_object_with_the_contract_s_fields(gristmill, peer) -> None:
    done = gristmill("bench", peer.url, *SHORT, "--slo-ttft", 1000, "--price-per-hour", 1, "--json")
    run = json.loads(done.out)
    assert done.code == 0
    assert set(run) >= CONTRACT
    assert set(run["ttft_ms"]) == {"p50", "p95", "p99", "max"}
    assert run["environment"]["url"] == peer.url
    assert run["goodput_rps"] > 0


def test_several_loads_are_a_list_each_with_its_own_prompts(gristmill, peer) -> None:
    done = gristmill("bench", peer.url, *SHORT, "--concurrency", "1,2", "--repeat", 2, "--json")
    runs = json.loads(done.out)
    assert [run["workload"]["concurrency"] for run in runs] == [1, 1, 2, 2]
    prompts = [body["prompt"] for body in peer.streams]
    assert len(set(prompts)) == len(prompts) == 16


def test_lengths_make_a_load_each_or_are_mixed(gristmill, peer) -> None:
    lengths = ("--prompt-tokens", "8,16", "--output-tokens", "2,3", "--requests", 8, "--warmup", 0)
    assert len(json.loads(gristmill("bench", peer.url, *lengths, "--json").out)) == 4
    mixed = json.loads(gristmill("bench", peer.url, *lengths, "--mixed", "--json").out)
    assert len(mixed["workload"]["shapes"]) == 4


def test_people_get_a_table(gristmill, peer) -> None:
    done = gristmill("bench", peer.url, *SHORT, "--rate", 100)
    assert "TTFT p50" in done.out
    assert "100 requests/s, 8 + 3 tokens" in done.out
    assert "of a processor" in done.err


def test_a_trace_is_replayed(gristmill, peer, tmp_path: Path) -> None:
    trace = tmp_path / "day.csv"
    trace.write_text("timestamp_s,input_tokens,output_tokens\n0,9,2\n2,7,4\n")
    options = ("--trace", trace, "--trace-speed", 20, "--warmup", 0, "--json")
    run = json.loads(gristmill("bench", peer.url, *options).out)
    assert (run["requests"], run["prompt_tokens"], run["output_tokens"]) == (2, 16, 6)
    assert peer.times[-1] - peer.times[-2] == pytest.approx(0.1, abs=0.09)


def test_every_run_is_kept_and_listed(gristmill, peer, store: Path) -> None:
    gristmill("bench", peer.url, *SHORT, "--note", "first try")
    gristmill("bench", peer.url, *SHORT)
    assert len((store / "bench.jsonl").read_text().splitlines()) == 2
    assert "first try" in gristmill("bench", "--history").out
    assert len(json.loads(gristmill("bench", "--history", "--json").out)) == 2


def test_results_are_not_lost_with_a_log_that_can_not_be_written(gristmill, peer, tmp_path: Path) -> None:
    output = tmp_path / "runs.json"
    done = gristmill("bench", peer.url, *SHORT, "--log", "/dev/full", "--output", output, "--json")
    assert done.code == 3
    assert "No space left on device" in done.err
    assert json.loads(done.out) == json.loads(output.read_text())


@pytest.mark.parametrize("line", ["[1]", "{}", '{"environment": 5}', "[" * 100_000])
def test_a_line_of_the_log_that_is_no_run_is_one_line_and_the_contract_s_code(
    gristmill, tmp_path: Path, line: str
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f"{line}\n")
    for arguments in (("--history", "--log", path), ("--compare", path, path)):
        done = gristmill("bench", *arguments)
        assert (done.code, len(done.err.splitlines())) == (2, 1), done.err


def test_results_are_written_drawn_and_compared(gristmill, peer, tmp_path: Path) -> None:
    before, after, picture = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "a.svg"
    gristmill("bench", peer.url, *SHORT, "--repeat", 2, "--output", before, "--plot", picture)
    peer.delay = 0.05
    gristmill("bench", peer.url, *SHORT, "--repeat", 2, "--output", after)
    assert "<svg" in picture.read_text()
    changes = json.loads(gristmill("bench", "--compare", before, after, "--json").out)
    (speed,) = [change for change in changes if change["metric"] == "output_tokens_per_s"]
    assert speed["verdict"] == "worse"
    assert speed["ratio"] < 1
    assert "worse" in gristmill("bench", "--compare", before, after).out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "nothing to measure"),
        (("http://127.0.0.1:1",), 3, "can't reach http://127.0.0.1:1"),
        (("http://",), 2, "the server's URL is invalid"),
        (("nothing",), 2, "nothing"),
        (("URL", "--model", "other"), 2, "found other; expected peer"),
        (("URL", "--concurrency", "two"), 2, "--concurrency; found two"),
        (("URL", "--concurrency", "0"), 2, "--concurrency; found 0"),
        (("URL", "--concurrency", "1", "--rate", "2"), 2, "found both"),
        (("URL", "--requests", "0"), 2, "--requests; found 0"),
        (("URL", "--warmup", "-1"), 2, "--warmup; found -1"),
        (("URL", "--trace", "gone.csv"), 2, "gone.csv; found no such file"),
        (("URL", "--plot", "a.docx"), 2, "found .docx"),
        (("URL", "--output", "/gone/a.json"), 2, "a.json; found no such folder"),
        (("--compare", "a.json", "b.json"), 2, "a.json; found no such file"),
    ],
)
def test_what_is_wrong_is_one_line_and_the_contract_s_code(gristmill, peer, arguments, code, said) -> None:
    done = gristmill("bench", *(peer.url if word == "URL" else word for word in arguments))
    assert done.code == code
    assert said in done.err
    assert len([line for line in done.err.splitlines() if line.startswith("error:")]) == 1
    assert not peer.streams


def test_a_missing_plot_library_is_named_with_its_extra(gristmill, peer, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = gristmill("bench", peer.url, *SHORT, "--plot", "a.svg")
    assert done.code == 2
    assert "pip install 'gristmill[bench]'" in done.err


def test_an_interrupt_prints_what_was_measured_until_then(peer, tmp_path: Path) -> None:
    peer.delay = 0.02
    command = [sys.executable, "-m", "gristmill.cli.app", "bench", peer.url, "--json", "--warmup", "0"]
    command += ["--requests", "1000", "--output-tokens", "5", "--concurrency", "2"]
    environment = {**os.environ, "GRISTMILL_STORE": str(tmp_path)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
    deadline = time.monotonic() + 30
    while len(peer.streams) < 8 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    run = json.loads(out)
    assert process.returncode == 130
    assert run["interrupted"]
    assert 2 <= run["requests"] < 1000
    assert run["errors"] == 0
