"""The picture of a report for the README: `python -m tests.pipeline.report.screenshot PAGE PICTURE`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.browser import open_browser

_WIDTH, _HEIGHT = 1100, 2000


def main(page: Path, picture: Path) -> None:
    """Write the upper part of a page."""
    with open_browser() as browser:
        tab = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT}, color_scheme="light")
        tab.goto(page.resolve().as_uri())
        tab.screenshot(path=picture)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
