from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect

from tests.integration.dashboard.site import TOKEN, Site, site
from tests.servers.chromium import chromium

DEADLINE_MS = 60_000
expect.set_options(timeout=DEADLINE_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("site")) as found:
        yield found


class Visit:
    """A tab, with all that its console has said."""

    def __init__(self, page: Page, here: Site) -> None:
        self.page, self.here = page, here
        self.complaints: list[str] = []
        self.requested: set[str] = set()
        page.on("request", lambda request: self.requested.add(request.url))
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.set_default_timeout(DEADLINE_MS)

    def _heard(self, said: ConsoleMessage) -> None:
        if said.type in ("error", "warning"):
            self.complaints.append(said.text)

    def go(self, place: str) -> None:
        self.page.goto(f"{self.here.url}/dashboard/#/{place}")

    def confirm(self, button: str) -> None:
        self.page.get_by_role("dialog").get_by_role("button", name=button, exact=True).click()

    def told(self, text: str) -> None:
        self.page.locator(".toast", has_text=text).first.wait_for()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield context
    context.close()


@pytest.fixture
def anonymous(context: BrowserContext, here: Site) -> Visit:
    return Visit(context.new_page(), here)


@pytest.fixture
def visit(context: BrowserContext, here: Site) -> Visit:
    found = Visit(context.new_page(), here)
    found.page.goto(f"{here.url}/dashboard/#token={TOKEN}")
    found.page.locator("#connection.live").wait_for()
    return found
