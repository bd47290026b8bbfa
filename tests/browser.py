"""Debian's Chromium, without a screen and without a word to the network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

__all__ = ["CHROMIUM", "open_browser"]

CHROMIUM = Path("/usr/bin/chromium")
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser that is closed behind the body."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_FLAGS)
        try:
            yield browser
        finally:
            browser.close()
