"""The picture of a report for the README: `python -m tests.pipeline.report.screenshot PAGE PICTURE`."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image

from tests.browser import open_browser

_WIDTH, _HEIGHT = 1100, 2000
_COLOURS = 128


def main(page: Path, picture: Path) -> None:
    """Write the upper part of a page, in few colours so that it stays small."""
    with open_browser() as browser:
        tab = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT}, color_scheme="light")
        tab.goto(page.resolve().as_uri())
        image = Image.open(io.BytesIO(tab.screenshot()))
    image.convert("RGB").quantize(_COLOURS).save(picture, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
