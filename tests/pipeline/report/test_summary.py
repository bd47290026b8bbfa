"""The report for a terminal."""

from __future__ import annotations

from gristmill.pipeline.report.data import ReportData
from gristmill.pipeline.report.summary import summary


def test_tasks_are_told_with_their_verdict_where_the_original_ran_them(
    full_report: ReportData, hostile: str
) -> None:
    line = summary(full_report)["tasks on native-x86"]
    assert line == f"arc_easy 0.52 -> 0.43 (worse), {hostile} 0.25"
