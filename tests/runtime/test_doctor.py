"""The report on this machine: what it names exists, what it measures is plausible."""

from __future__ import annotations

import json

import pytest

from gristmill.runtime.doctor import MachineReport, examine, measure_speeds
from gristmill.runtime.errors import InputError, OutsideError
from tests.little_memory import little_memory

FORMATS = {"int8", "bfloat16", "float32"}


@pytest.fixture(scope="module")
def report() -> MachineReport:
    return examine({})


def test_the_fastest_instruction_set_is_chosen(report: MachineReport) -> None:
    assert report.instruction_sets[0] == "scalar"
    assert report.speeds.instruction_set == report.instruction_sets[-1]
    assert report.forced is None


def test_an_instruction_set_that_is_not_here_is_refused_with_those_that_are() -> None:
    with pytest.raises(InputError, match=r"GRISTMILL_ISA.*found avx9000.*scalar"):
        examine({"GRISTMILL_ISA": "avx9000"})


def test_every_format_is_measured(report: MachineReport) -> None:
    assert set(report.speeds.multiply_adds) == FORMATS
    assert all(1e7 < rate < 1e15 for rate in report.speeds.multiply_adds.values())


def test_bandwidth_is_plausible(report: MachineReport) -> None:
    assert 0.5 < report.speeds.gigabytes < 5000


def test_both_ways_to_count_threads_agree(report: MachineReport) -> None:
    """The engine counts in C++, what is shown beside it in Python."""
    assert report.speeds.threads == report.cpus.effective


def test_speeds_are_measured_with_the_threads_asked_for() -> None:
    speeds = measure_speeds("scalar", 1 << 24, threads=1)
    assert (speeds.threads, speeds.instruction_set) == (1, "scalar")


@pytest.mark.parametrize(("threads", "buffer"), [(500, 1 << 20), (1, 1 << 30)])
def test_threads_and_memory_that_the_system_refuses_are_named(threads: int, buffer: int) -> None:
    message = f"the system refuses {threads} threads or {buffer >> 20} MiB to measure with; found "
    with little_memory(64), pytest.raises(OutsideError, match=message):
        measure_speeds("scalar", buffer, threads)


def test_the_report_is_json(report: MachineReport) -> None:
    shown = json.loads(json.dumps(report.to_dict()))
    assert shown["instruction_set"] in shown["instruction_sets"]
    assert shown["cores"]["effective"] >= 1
    assert shown["memory_bytes"]["free"] > 0
