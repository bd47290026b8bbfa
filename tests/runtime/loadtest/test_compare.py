"""What changed between two results, and what is kept of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gristmill.runtime.errors import InputError
from gristmill.runtime.loadtest.compare import compare_runs, load_runs
from gristmill.runtime.loadtest.plot import check_plot, plot_runs
from gristmill.runtime.loadtest.tuning_log import append_runs, read_runs


def run(speed: float, ttft: float = 10.0, name: str = "concurrency 1") -> dict[str, Any]:
    """A result with two numbers."""
    return {
        "workload": {"name": name},
        "output_tokens_per_s": speed,
        "ttft_ms": {"p50": ttft, "p95": ttft, "p99": None},
        "tpot_ms": dict.fromkeys(("p50", "p95", "p99"), 1.0),
    }


def verdicts(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> dict[str, str]:
    return {change.metric: change.verdict for change in compare_runs(before, after)}


def test_changes_beyond_the_repeats_are_better_or_worse() -> None:
    found = verdicts([run(100, 10), run(105, 11)], [run(120, 20), run(118, 19)])
    assert found["output_tokens_per_s"] == "better"
    assert found["ttft_ms p50"] == "worse"


def test_changes_within_the_repeats_are_noise() -> None:
    assert verdicts([run(100), run(110)], [run(105), run(120)])["output_tokens_per_s"] == "noise"


def test_a_single_run_proves_nothing() -> None:
    assert verdicts([run(100)], [run(200), run(201)])["output_tokens_per_s"] == "unknown"


def test_the_ratio_is_that_of_the_means() -> None:
    (change, *_) = compare_runs([run(100), run(110)], [run(210)])
    assert change.ratio == pytest.approx(2.0)


def test_only_equal_workloads_are_compared() -> None:
    with pytest.raises(InputError, match="nothing to compare; found workloads b; expected one of a"):
        compare_runs([run(1, name="a")], [run(1, name="b")])


def test_one_run_or_several_are_loaded(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(run(1)))
    assert load_runs(path) == [run(1)]
    path.write_text(json.dumps([run(1), run(2)]))
    assert len(load_runs(path)) == 2


@pytest.mark.parametrize("text", ["{", "3", "[]", '{"requests": 3}'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(InputError, match="gristmill bench --output"):
        load_runs(path)


def test_the_log_keeps_every_run(tmp_path: Path) -> None:
    path = tmp_path / "new" / "bench.jsonl"
    assert read_runs(path) == []
    append_runs(path, [run(1), run(2)])
    append_runs(path, [run(3)])
    assert [kept["output_tokens_per_s"] for kept in read_runs(path)] == [1, 2, 3]


def test_a_bad_line_of_the_log_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bench.jsonl"
    path.write_text("{}\nnothing\n")
    with pytest.raises(InputError, match=r"bench\.jsonl:2"):
        read_runs(path)


def test_runs_are_drawn(tmp_path: Path) -> None:
    path = tmp_path / "loads.svg"
    plot_runs(path, [run(1), run(2, name="concurrency 8")])
    assert "concurrency 8" in path.read_text()


def test_an_unknown_picture_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"found \.docx; expected \.png or \.svg or \.pdf"):
        check_plot(tmp_path / "loads.docx")
