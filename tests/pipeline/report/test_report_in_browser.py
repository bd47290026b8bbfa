"""A real browser shows the page in both colour schemes, on a phone and on paper, and loads nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page

from gristmill.pipeline.report.data import ReportData
from gristmill.pipeline.report.html import report_html
from tests.browser import CHROMIUM, open_browser

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
WIDTHS = (390, 1280)

if not CHROMIUM.exists():
    pytest.skip(f"no browser at {CHROMIUM}", allow_module_level=True)


@dataclass
class Visit:
    """A page that is open, and what went on meanwhile."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def address(full_report: ReportData, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(report_html(full_report))
    return path.as_uri()


@pytest.fixture(params=[(width, scheme) for width in WIDTHS for scheme in SCHEMES], ids=str)
def visit(browser: Browser, address: str, request: pytest.FixtureRequest) -> Iterator[Visit]:
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    found = Visit(context.new_page())
    found.page.on("console", lambda message: found.complaints.append(message.text))
    found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
    found.page.on("request", lambda request: found.requests.append(request.url))
    found.page.goto(address)
    yield found
    context.close()


def test_it_asks_for_nothing_and_complains_of_nothing(visit: Visit, address: str) -> None:
    assert visit.requests == [address]
    assert visit.complaints == []
    assert "pwned" not in visit.page.title()


def test_it_fits_the_screen(visit: Visit) -> None:
    assert visit.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_text_stands_out_from_what_is_behind_it(visit: Visit) -> None:
    """By the contrast that WCAG 2.2 asks of text, 4.5 to 1."""
    ratios = visit.page.evaluate(
        """() => {
          const light = (text) => {
            const [r, g, b] = text.match(/[0-9.]+/g).map(Number).map((v) => v / 255)
              .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const behind = (node) => {
            for (; node; node = node.parentElement) {
              const colour = getComputedStyle(node).backgroundColor;
              if (colour.startsWith("rgb(")) return colour;
            }
            return getComputedStyle(document.body).backgroundColor;
          };
          const texts = ["h1", "section p", "td", "th", ".tile b", ".badge", ".bars .value", ".bars .label"];
          return texts.map((query) => {
            const node = document.querySelector(query);
            const [a, b] = [light(getComputedStyle(node).color), light(behind(node))];
            return [query, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
          });
        }"""
    )
    assert not [(query, ratio) for query, ratio in ratios if ratio < 4.5]


def test_every_section_is_to_be_seen(visit: Visit) -> None:
    headings = visit.page.locator("section h2")
    assert headings.count() == 11
    assert all(heading.is_visible() for heading in headings.all())
    assert visit.page.get_by_text("This report cannot show").is_visible()


def test_marks_lie_within_their_axes(visit: Visit) -> None:
    outside = visit.page.evaluate(
        """() => [...document.querySelectorAll(".plot .area, .bars .track")].flatMap((area) => {
          const box = area.getBoundingClientRect();
          const slack = 8;  // half of a point on the edge
          return [...area.querySelectorAll(".mark")].map((mark) => mark.getBoundingClientRect())
            .filter((mark) => mark.left < box.left - slack || mark.right > box.right + slack
              || mark.top < box.top - slack || mark.bottom > box.bottom + slack);
        })"""
    )
    assert outside == []
    for chart, least in (
        ("pareto", 5),
        ("heat", 120),
        ("channels", 30),
        ("lengths", 10),
        ("kinds", 4),
        ("times", 3),
    ):
        assert visit.page.locator(f"#{chart} .mark").count() >= least, chart


def test_the_colour_schemes_differ(browser: Browser, address: str) -> None:
    colours = set()
    for scheme in SCHEMES:
        page = browser.new_page(color_scheme=scheme)
        page.goto(address)
        colours.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.close()
    assert len(colours) == 2


def test_it_prints(browser: Browser, address: str) -> None:
    page = browser.new_page(color_scheme="dark")
    page.goto(address)
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(22, 25, 29)"
    page.close()
