"""Ten thousand tables in the browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from registry.contract import MetadataStore
from tests.integration.dashboard.conftest import Visit
from tests.samples import TABLE

pytestmark = pytest.mark.long

TABLES = 10_000


async def create_many(store: MetadataStore) -> None:
    for number in range(TABLES):
        await store.create_table("big", f"measurements_{number:05}", f"/no/such/lake/{number}", TABLE)


def test_ten_thousand_tables_are_paged_and_searched(visit: Visit) -> None:
    visit.here.write(create_many)
    visit.go("tables")
    expect(visit.page.get_by_text(re.compile("of 10,00"))).to_be_visible()
    visit.page.get_by_role("button", name="Next").click()
    expect(visit.page.get_by_text(re.compile("^51"))).to_be_visible()
    visit.page.get_by_role("button", name="Previous").click()
    expect(visit.page.get_by_role("link", name="big.measurements_00000")).to_be_visible()
    visit.page.get_by_label("Search").fill("_09999")
    expect(visit.page.get_by_role("link", name="big.measurements_09999")).to_be_visible()
    expect(visit.page.locator("tbody tr")).to_have_count(1)
    visit.page.get_by_label("Search").fill("measurements")
    visit.page.get_by_label("Order").select_option("modified")
    expect(visit.page.locator("tbody tr").first).to_contain_text("measurements_09999")
    assert visit.complaints == []
