"""The page stands alone, escapes what is not ours, and shows what it is given and nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import pytest

from gristmill.artifacts.record import BuildRecord
from gristmill.pipeline.report.builds import Builds
from gristmill.pipeline.report.data import ReportData
from gristmill.pipeline.report.html import report_html


class Tags(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str | None]] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(attrs)


@pytest.fixture(scope="module")
def page(full_report: ReportData) -> str:
    return report_html(full_report)


def sections(page: str) -> set[str]:
    return set(re.findall(r'<section id="([a-z-]+)"', page))


def test_no_text_becomes_markup(page: str, hostile: str) -> None:
    found = Tags(page)
    assert not {"script", "img", "iframe", "object", "link", "form", "a"} & found.tags
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert hostile not in page
    assert hostile in unescape(page)


def test_nothing_outside_of_the_page_is_named(page: str) -> None:
    names = {name for name, _ in Tags(page).attributes}
    assert not {"src", "href", "srcset", "data", "action", "xlink:href"} & names
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert "default-src 'none'" in unescape(page)


def test_every_part_is_there(page: str) -> None:
    parts = {
        "builds",
        "quality",
        "tasks",
        "layers",
        "widths",
        "outliers",
        "mix",
        "worst",
        "stages",
        "engines",
        "recipe",
    }
    assert sections(page) == parts
    assert "Left out: 2 of other models, 1 damaged." in page
    assert "1 gate passed" in page


def test_a_task_has_its_difference_interval_flips_and_verdict(page: str) -> None:
    row = page[page.index("<td>arc_easy</td>") :].split("</tr>")[0]
    cells = [unescape(re.sub("<.*?>", "", cell)).strip() for cell in row.split("</td>")]
    told = "arc_easy|native-x86|acc|200|0.5200|0.4300|-0.0900|-0.1400 to -0.0400|+3 \N{MINUS SIGN}21|worse"
    assert cells == [*told.split("|"), ""]
    assert '<td class="text bad">worse</td>' in row


def test_a_task_that_the_original_did_not_run_has_its_value_alone(page: str) -> None:
    assert '<td>0.2500</td><td class="text" colspan="4">not run on the original</td>' in page


def test_a_page_never_tells_where_files_lie(page: str) -> None:
    assert "/somebody/at/home" not in page


def test_what_is_not_known_is_left_out(full_report: ReportData) -> None:
    manifest = replace(full_report.artifact.manifest, validation={}, gates=(), layer_errors=())
    bare = replace(
        full_report,
        artifact=replace(full_report.artifact, manifest=manifest),
        engine=None,
        data={},
        tasks={},
        builds=Builds(),
        layers=None,
        widths=None,
        outliers=(),
        mix=None,
        worst=(),
        record=None,
        missing=("Quality: nothing was validated.",),
    )
    page = report_html(bare)
    assert sections(page) == {"engines", "recipe"}
    assert "Quality: nothing was validated." in page
    assert "no gates" in page


def test_a_record_without_stages_or_memory_is_no_chart(full_report: ReportData) -> None:
    page = report_html(replace(full_report, record=BuildRecord("2026-11-30T10:00:00Z")))
    assert "stages" not in sections(page)


def test_a_failed_gate_is_told(full_report: ReportData) -> None:
    manifest = full_report.artifact.manifest
    failed = replace(manifest, gates=(replace(manifest.gates[0], passed=False),))
    page = report_html(replace(full_report, artifact=replace(full_report.artifact, manifest=failed)))
    assert "gates failed" in page
    assert "passed</span>" not in page
