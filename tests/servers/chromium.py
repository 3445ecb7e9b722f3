"""A real browser: Chromium, installed or from its Debian package, driven by Playwright."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

from tests.servers.packages import find_program

_OPTIONS = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")
"""Tests may run as root and in containers; the only pages are our own."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Raises PackageMissing, which says what to install, if there is none."""
    program = find_program("chromium", "chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program.path, env={**program.environment}, args=list(_OPTIONS)
        )
        try:
            yield browser
        finally:
            browser.close()
