"""Which requests a workload holds: lengths, arrivals, shared text."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from gristmill.runtime.errors import InputError
from gristmill.runtime.loadtest.prompts import Segment, TokenPrompts, WordPrompts
from gristmill.runtime.loadtest.trace import TraceRow, fit_rows, read_trace
from gristmill.runtime.loadtest.workload import Shape, Workload, plan_requests

HEADER = "timestamp_s,input_tokens,output_tokens,prefix_ids\n"
WORDS = WordPrompts(tuple("abcdefghij"), 1.0, 1)


@pytest.fixture
def write_trace(tmp_path: Path):
    """A trace of these lines."""

    def write(lines: str, header: str = HEADER) -> Path:
        path = tmp_path / "trace.csv"
        path.write_text(header + lines)
        return path

    return write


def test_the_same_seed_plans_the_same_requests() -> None:
    load = Workload((Shape(10, 5), Shape(20, 9)), rate=3.0, requests=20, seed=7)
    assert list(plan_requests(load)) == list(plan_requests(load))


def test_poisson_arrivals_come_at_their_rate() -> None:
    planned = list(plan_requests(Workload(rate=10.0, requests=2000)))
    gaps = [b - a for a, b in itertools.pairwise(request.due or 0.0 for request in planned)]
    assert sum(gaps) / len(gaps) == pytest.approx(0.1, rel=0.1)
    assert sum(gap < 0.1 for gap in gaps) / len(gaps) == pytest.approx(0.632, abs=0.05)  # 1 - 1/e


def test_mixed_shapes_all_occur() -> None:
    shapes = (Shape(1, 1), Shape(2, 2), Shape(3, 3))
    planned = plan_requests(Workload(shapes, concurrency=1, requests=50))
    assert {request.output_tokens for request in planned} == {1, 2, 3}


def test_prompts_share_their_prefix_and_nothing_else() -> None:
    planned = plan_requests(Workload((Shape(16, 1),), concurrency=1, requests=2, shared_prefix_tokens=32))
    first, second = [WORDS.make(request.segments).split() for request in planned]
    assert len(first) == len(second) == 16 + 32 - 1  # the server adds one
    assert first[:32] == second[:32]
    assert first[32:] != second[32:]


def test_blocks_of_a_trace_with_the_same_id_are_the_same_text() -> None:
    rows = (TraceRow(0.0, 1200, 1, ("7", "8")), TraceRow(0.5, 1030, 1, ("7", "9")))
    planned = list(plan_requests(Workload((), rows=rows)))
    first, second = [TokenPrompts().make(request.segments) for request in planned]
    assert (len(first), len(second)) == (1200, 1030)
    assert first[:512] == second[:512]
    assert first[512:520] != second[512:520]


def test_a_block_that_ends_early_is_the_head_of_the_whole_one() -> None:
    whole, head = TokenPrompts().make([Segment("block", 512)]), TokenPrompts().make([Segment("block", 100)])
    assert whole[:100] == head


def test_a_trace_keeps_its_times_and_lengths(write_trace) -> None:
    path = write_trace("2.5,30,4,\n0,10,20,\n")
    assert read_trace(path) == [TraceRow(0.0, 10, 20), TraceRow(2.5, 30, 4)]


def test_a_trace_may_hold_lengths_only(write_trace) -> None:
    assert read_trace(write_trace(",30,4\n", HEADER.replace(",prefix_ids", "")))[0].seconds is None


def test_every_shared_trace_is_read(data_dir: Path) -> None:
    paths = sorted((data_dir / "traces").iterdir())
    assert paths
    for path in paths:
        assert len(read_trace(path)) >= 2500


def test_a_trace_is_fitted_to_speed_and_window() -> None:
    rows = [TraceRow(10.0, 5000, 900), TraceRow(20.0, 10, 20)]
    assert fit_rows(rows, speed=2.0, max_tokens=1000) == [TraceRow(5.0, 500, 500), TraceRow(10.0, 10, 20)]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("0,10,20,\nsoon,10,20,\n", "trace.csv:3; found timestamp_s 'soon'"),
        ("0,10,20,\n1,-3,20,\n", "trace.csv:3; found input_tokens '-3'"),
        ("0,10,\n", "trace.csv:2; found output_tokens ''"),
        ("0,10\n", "trace.csv:2; found output_tokens None"),
        ("nan,10,2,\n", "trace.csv:2; found timestamp_s 'nan'"),
        ("0,10,2,\n,10,2,\n", "times in some lines only"),
        ("", "no request"),
    ],
)
def test_a_bad_line_is_named_by_its_number(write_trace, lines: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read_trace(write_trace(lines))
    assert said in str(caught.value)


def test_a_trace_without_a_column_is_refused(write_trace) -> None:
    with pytest.raises(InputError, match="no column output_tokens"):
        read_trace(write_trace("0,1\n", "timestamp_s,input_tokens\n"))
