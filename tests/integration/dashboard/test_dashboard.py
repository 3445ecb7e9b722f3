"""The dashboard in a real Chromium: each screen, each action, the daemon restarted under it, accessibility."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias
from uuid import uuid4

import msgspec
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from registry.contract import MetadataStore
from tests.integration.dashboard.conftest import Visit
from tests.integration.dashboard.site import HOSTILE, ORDERS, TOKEN, Site
from tests.samples import decision
from tests.waiting import eventually_now

pytestmark = pytest.mark.slow

Scheme: TypeAlias = Literal["light", "dark"]

SCREENS = {
    "": "Overview",
    "tables": "Tables",
    f"tables/{ORDERS}": ORDERS,
    "compaction": "Compaction",
    "topics": "Topics",
    "topics/clicks": "clicks",
    "events": "Events",
    "daemons": "Daemons",
}


def loaded(visit: Visit, title: str) -> None:
    visit.page.get_by_role("heading", level=1, name=title, exact=True).wait_for()
    expect(visit.page.locator("[aria-busy], .loading")).to_have_count(0)


def audit(here: Site, action: str) -> dict[str, object]:
    assert here.daemon is not None
    lines = here.daemon.lines

    def found() -> list[dict[str, object]]:
        return [line for line in lines if line["event"] == "operator action" and line["action"] == action]

    eventually_now(lambda: bool(found()), f"an audit line of {action}")
    return found()[-1]


def accessible(visit: Visit, *schemes: Scheme) -> None:
    for scheme in schemes:
        visit.page.emulate_media(color_scheme=scheme)
        found = Axe().run(visit.page)
        assert found.violations_count == 0, f"{visit.page.title()}, {scheme}: {found.generate_report()}"


def test_each_screen_is_accessible_and_silent(visit: Visit) -> None:
    for place, title in SCREENS.items():
        visit.go(place)
        loaded(visit, title)
        accessible(visit, "light", "dark")
    assert visit.complaints == []
    assert [url for url in visit.requested if not url.startswith(f"{visit.here.url}/")] == []


def test_a_phone_scrolls_in_one_direction(visit: Visit) -> None:
    visit.page.set_viewport_size({"width": 360, "height": 740})
    for place, title in SCREENS.items():
        visit.go(place)
        loaded(visit, title)
        width = visit.page.evaluate("document.documentElement.scrollWidth")
        assert width <= 360, f"{place} is {width} wide"


def test_the_root_leads_to_the_overview(visit: Visit) -> None:
    visit.page.goto(visit.here.url)
    loaded(visit, "Overview")
    for name in ("iceberg_updater", "snapshotter", "compactor", "audit"):
        lane = visit.page.get_by_role("article", name=f"component {name}")
        expect(lane.get_by_text("live", exact=True)).to_be_visible()
    expect(visit.page.get_by_text("Every change reaches every component")).to_be_visible()
    expect(visit.page.get_by_role("img", name=re.compile("^Events delivered per second"))).to_be_visible()
    expect(visit.page.get_by_text("change log", exact=True)).to_be_visible()


def test_names_are_text(visit: Visit) -> None:
    visit.go("tables")
    loaded(visit, "Tables")
    visit.page.get_by_role("link", name=f"evil.{HOSTILE}").click()
    loaded(visit, f"evil.{HOSTILE}")
    assert visit.page.locator("main img").count() == 0
    visit.go("compaction")
    loaded(visit, "Compaction")
    assert visit.page.locator("main img").count() == 0
    assert visit.complaints == []


def test_tables_are_searched_and_decisions_are_paged(visit: Visit) -> None:
    visit.go("tables")
    visit.page.get_by_label("Search").fill("ORDERS")
    expect(visit.page.get_by_text("of 1")).to_be_visible()
    visit.page.get_by_label("Search").fill("nothing")
    expect(visit.page.get_by_text("name contains")).to_be_visible()
    visit.go("compaction")
    visit.page.get_by_role("button", name="Older").click()
    expect(visit.page.get_by_role("button", name="Newer")).to_be_enabled()


def test_topics_show_lag(visit: Visit) -> None:
    visit.go("topics")
    visit.page.get_by_role("link", name="clicks").click()
    row = visit.page.get_by_role("row", name=re.compile("^billing"))
    expect(row).to_contain_text("60")


def test_events_pass_by_as_they_happen(visit: Visit) -> None:
    visit.go("events")
    loaded(visit, "Events")
    eventually_now(lambda: _topic_seen(visit), "an event")
    events = visit.page.locator(".events li:visible")
    visit.page.get_by_label("Contains").fill("nothing contains this")
    expect(events).to_have_count(0)
    expect(visit.page.get_by_text("0 of the last")).to_be_visible()
    visit.page.get_by_label("Contains").fill("SEEN-")
    expect(events.first).to_be_visible()
    visit.page.get_by_label("Component").select_option("audit")  # offered although the page came before the status
    visit.page.get_by_label("Table").select_option("topics")
    eventually_now(lambda: _topic_seen(visit), "an event of the component's table")


def _topic_seen(visit: Visit) -> bool:
    """The stream begins some time after the page has loaded: topics are added until one is seen."""
    visit.here.add_topic(f"seen-{uuid4().hex}")
    return visit.page.locator(".events", has_text="seen-").count() > 0


def test_actions_on_a_component(visit: Visit) -> None:
    lane = visit.page.get_by_role("article", name="component audit")
    lane.get_by_role("button", name="pause audit").click()
    visit.confirm("Pause")
    expect(lane.get_by_text("paused", exact=True)).to_be_visible()
    lane.get_by_role("button", name="resume audit").click()
    visit.confirm("Resume")
    expect(lane.get_by_text("live", exact=True)).to_be_visible()
    lane.get_by_role("button", name="refresh audit").click()
    visit.page.get_by_role("dialog").wait_for()
    visit.page.keyboard.press("Escape")
    expect(visit.page.get_by_role("dialog")).to_have_count(0)
    lane.get_by_role("button", name="refresh audit").click()
    visit.confirm("Refresh")
    visit.told("audit is")
    for action in ("resume", "refresh"):
        assert audit(visit.here, action)["component"] == "audit"
    line = audit(visit.here, "pause")
    assert (line["component"], line["peer"]) == ("audit", "127.0.0.1")
    assert "Chrome" in str(line["client"])


def test_a_failing_component_says_why_and_recovers(visit: Visit) -> None:
    lane = visit.page.get_by_role("article", name="component audit")
    with visit.here.failing_audit():
        visit.here.add_topic(f"failing-{uuid4().hex}")
        expect(lane.get_by_text("retrying", exact=True)).to_be_visible()
        expect(lane).to_contain_text("IsADirectoryError")
        expect(lane).to_contain_text("The machine refused something")
        expect(visit.page.get_by_text("audit fails and is tried again")).to_be_visible()
        accessible(visit, "light", "dark")
        done = visit.here.astha("top", "--once", "--interval", "0.2", "--server", visit.here.url)
        assert "! audit: delivery failed" in done.stdout
        assert "audit: delivery failed" in visit.here.astha("status", "--server", visit.here.url).stdout
        lane.get_by_role("button", name="refresh audit").click()
        visit.confirm("Refresh")
        expect(lane.get_by_text("refresh owed", exact=True)).to_be_visible()
        expect(lane).to_contain_text("IsADirectoryError")
        expect(visit.page.get_by_text("Not every change reaches every component")).to_be_visible()
        assert visit.page.title().startswith("⚠")
    lane.get_by_role("button", name="refresh audit").click()
    visit.confirm("Refresh")
    expect(lane.get_by_text("live", exact=True)).to_be_visible()
    expect(visit.page.get_by_text("Every change reaches every component")).to_be_visible()
    assert visit.complaints == []


def test_snapshot_compact_cancel_and_roll_back(visit: Visit) -> None:
    page = visit.page
    visit.go(f"tables/{ORDERS}")
    loaded(visit, ORDERS)
    page.get_by_role("button", name="Snapshot", exact=True).click()
    page.get_by_label("Tag (optional)").fill("before")
    visit.confirm("Request snapshot")
    visit.told("Snapshot requested")
    eventually_now(lambda: _reloaded(visit, "Roll back to before"), "the snapshot")
    page.get_by_role("button", name="Cancel compactions").click()
    visit.confirm("Cancel compactions")
    visit.told("Cancelled: 0.")
    page.get_by_role("button", name="Compact", exact=True).click()
    visit.confirm("Compact")
    visit.told("Compacting 1 partition")
    eventually_now(lambda: _reloaded(visit, None) and "6 → 1" in page.inner_text("main"), "a compacted table")
    page.get_by_role("button", name="Roll back to before").click()
    expect(page.get_by_role("dialog")).to_contain_text("Files removed: 1, restored: 6; 0 rows")
    visit.confirm("Roll back")
    visit.told("is rolled back")
    eventually_now(lambda: _reloaded(visit, None) and "now: 6 files" in page.inner_text("main"), "the old files")
    for action in ("snapshot", "cancel", "compact", "rollback"):
        assert audit(visit.here, action)["table"] == ORDERS
    assert visit.complaints == []


def _reloaded(visit: Visit, button: str | None) -> bool:
    visit.page.reload()
    loaded(visit, ORDERS)
    return button is None or visit.page.get_by_role("button", name=button).count() > 0


def test_a_running_compaction_is_shown_and_cancelled(visit: Visit) -> None:
    async def begin(store: MetadataStore) -> None:
        (table,) = (await store.search_tables("evil")).tables
        spec = decision("day=0", table_id=table.id)
        spec = msgspec.structs.replace(spec, table_name=f"evil.{HOSTILE}")
        await store.begin_compaction(spec, operation_id="one", owner="another process", stale_after_ms=60_000)

    visit.here.write(begin)
    visit.go("compaction")
    job = visit.page.get_by_role("article").filter(has_text="runs in another process")
    expect(job.get_by_role("progressbar")).to_be_visible()
    job.get_by_role("button", name="Cancel").click()
    visit.confirm("Cancel compactions")
    visit.told("Cancelled: 1.")
    assert audit(visit.here, "cancel")["arguments"] == {"partition": "day=0"}


def test_top_shows_the_same_in_a_terminal(here: Site) -> None:
    done = here.astha("top", "--once", "--interval", "0.2", "--server", here.url)
    assert done.returncode == 0, done.stderr
    for text in ("leading", "iceberg_updater", "snapshotter", "compactor", "audit", "closed"):
        assert text in done.stdout


def test_an_action_asks_for_the_token(anonymous: Visit) -> None:
    anonymous.go("")
    anonymous.page.get_by_role("heading", name="This daemon asks for a token").wait_for()
    anonymous.page.get_by_role("button", name="Enter a token").click()
    anonymous.page.get_by_role("dialog").get_by_label("Token").fill(TOKEN)
    anonymous.confirm("Use it")
    anonymous.page.get_by_role("article", name="component audit").wait_for()


def test_works_with_the_keyboard(visit: Visit) -> None:
    visit.page.keyboard.press("Tab")
    expect(visit.page.get_by_role("link", name="Skip to the content")).to_be_focused()
    visit.page.keyboard.press("Enter")
    expect(visit.page.locator("main")).to_be_focused()
    button = visit.page.get_by_role("button", name="pause audit")
    button.focus()
    visit.page.keyboard.press("Enter")
    visit.page.get_by_role("dialog", name="Pause audit?").wait_for()
    visit.page.keyboard.press("Escape")
    expect(visit.page.get_by_role("dialog")).to_have_count(0)
    expect(button).to_be_focused()
    visit.page.get_by_role("link", name="Tables").focus()
    visit.page.keyboard.press("Enter")
    loaded(visit, "Tables")


def test_focus_and_selected_text_stay_when_the_page_is_drawn_again(visit: Visit) -> None:
    lane = visit.page.get_by_role("article", name="component audit")
    deliveries = lane.get_by_text(re.compile(r"^[0-9,]+ failed of [0-9,]+$"))
    before = deliveries.inner_text()
    lane.get_by_role("button", name="pause audit").focus()
    lane.get_by_role("heading").evaluate("heading => getSelection().selectAllChildren(heading)")
    visit.here.add_topic(f"drawn-{uuid4().hex}")
    expect(deliveries).not_to_have_text(before)
    assert visit.page.evaluate("String(getSelection())") == "audit"
    expect(lane.get_by_role("button", name="pause audit")).to_be_focused()


def test_a_list_shows_what_is_new(visit: Visit) -> None:
    visit.page.clock.install()
    visit.go("topics")
    visit.page.reload()
    loaded(visit, "Topics")
    visit.here.add_topic("seen-without-a-reload")
    new = visit.page.get_by_role("link", name="seen-without-a-reload")

    def shown() -> bool:
        visit.page.clock.fast_forward(10_000)
        return new.count() == 1

    eventually_now(shown, "the new topic")


def test_an_address_that_is_cut_says_so(visit: Visit) -> None:
    visit.go("tables/%E0%A4%A")
    visit.page.get_by_role("heading", level=1, name="%E0%A4%A").wait_for()
    visit.page.get_by_role("alert").filter(has_text="There is no table").wait_for()


def test_a_standby_names_the_leader(visit: Visit) -> None:
    with visit.here.standby() as url:
        visit.go("daemons")
        daemons = visit.page.get_by_role("region", name="Daemons of astha")
        for role in ("leader", "standby"):
            expect(daemons.get_by_text(role, exact=True)).to_be_visible()
        leader = daemons.get_by_role("row").filter(has_text="this one").get_by_role("rowheader").inner_text()
        visit.page.goto(f"{url}/dashboard/#token={TOKEN}")
        expect(visit.page.get_by_text("This daemon stands by")).to_be_visible()
        expect(visit.page.get_by_text(f"{leader.split()[0]} leads")).to_be_visible()
        expect(visit.page.get_by_text("the leader reads it")).to_be_visible()
        assert visit.page.get_by_role("button", name=re.compile("^(pause|refresh) ")).count() == 0
        accessible(visit, "light")
        assert not visit.page.title().startswith("⚠")


def test_the_daemon_restarts_under_it(visit: Visit) -> None:
    visit.here.stop()
    visit.page.locator("#connection.disconnected").wait_for()
    expect(visit.page.get_by_role("alert").filter(has_text="connects again by itself")).to_be_visible()
    expect(visit.page.get_by_text("Every change reaches every component")).to_be_hidden()
    accessible(visit, "light")
    visit.go("tables")
    visit.page.get_by_role("button", name="Try again").wait_for()
    visit.here.start()
    visit.page.locator("#connection.live").wait_for()
    expect(visit.page.get_by_role("alert").filter(has_text="connects again by itself")).to_have_count(0)
    visit.page.get_by_role("link", name=ORDERS).wait_for()
    visit.go("daemons")
    expect(visit.page.get_by_text("this one")).to_be_visible()
