"""The dashboard's routes: files, access, live data, and what they refuse."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from astha.listener import dashboard
from tests.unit.astha.server.daemons import Stage
from tests.unit.astha.server.joined import BEARER, READ_TOKEN, READER, TOKEN, Joined, joined

READ = ("/api/live", "/api/history", "/api/tables", "/api/compactions", "/api/topics", "/api/daemons", "/api/progress",
        "/api/tables/db.t", "/api/tables/db.t/explain", "/api/topics/t")  # fmt: skip
ACTIONS = tuple(f"/tables/db.t/{action}" for action in ("snapshot", "rollback", "compact", "cancel"))


@pytest.fixture
def stage() -> Stage:
    return Stage("audit")


@pytest.fixture
async def client(stage: Stage) -> AsyncIterator[Joined]:
    async with joined(stage, token=TOKEN, read_token=READ_TOKEN, max_dashboards=1) as client:
        yield client


async def event(response: aiohttp.ClientResponse) -> tuple[str, dict[str, Any]]:
    async with asyncio.timeout(30):
        lines = [(await response.content.readline()).decode() for _ in range(3)]
    assert lines[2] == "\n"
    return lines[0].removeprefix("event: ").strip(), json.loads(lines[1].removeprefix("data: "))


class TestFiles:
    async def test_the_root_leads_to_the_page(self, client: Joined) -> None:
        moved = await client.get("/", allow_redirects=False)
        assert (moved.status, moved.headers["Location"]) == (302, "/dashboard/")
        page = await client.get("/")
        assert (page.status, page.content_type) == (200, "text/html")
        assert "<title>Astha</title>" in await page.text()

    async def test_only_its_own_files_are_served(self, client: Joined) -> None:
        script = await client.get("/dashboard/app.js")
        assert (script.status, script.content_type) == (200, "text/javascript")
        again = await client.get("/dashboard/app.js", headers={"If-None-Match": script.headers["ETag"]})
        assert again.status == 304
        for name in ("__init__.py", "..%2f__init__.py", "%2e%2e/x", "nope.js"):
            assert (await client.get(f"/dashboard/{name}")).status == 404

    async def test_the_policy_allows_nothing_from_elsewhere_and_nothing_inline(self, client: Joined) -> None:
        for path in ("/dashboard/", "/dashboard/app.js", "/livez", "/nowhere", "/status"):
            headers = (await client.get(path)).headers
            policy = headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'self';")
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert headers["X-Content-Type-Options"] == "nosniff"
        page = await (await client.get("/dashboard/")).text()
        assert "http:" not in page
        assert "https:" not in page
        assert "style=" not in page


class TestAccess:
    @pytest.mark.parametrize("path", READ)
    async def test_data_needs_a_token(self, client: Joined, path: str) -> None:
        assert (await client.get(path)).status == 401
        assert (await client.get(path, headers={"Authorization": "Bearer wrong"})).status == 403

    @pytest.mark.parametrize("path", ACTIONS)
    async def test_actions_need_the_token_for_changes(self, client: Joined, path: str) -> None:
        assert (await client.post(path)).status == 401
        assert (await client.post(path, headers=READER)).status == 403
        assert (await client.get(path, headers=BEARER)).status == 405

    @pytest.mark.parametrize("path", [*ACTIONS, "/components/audit/pause"])
    async def test_pages_of_other_sites_are_refused(self, client: Joined, path: str) -> None:
        for foreign in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Host": "evil.example"}):
            assert (await client.post(path, headers={**BEARER, **foreign})).status == 403

    async def test_a_daemon_without_a_token_shows_data_and_changes_nothing(self, stage: Stage) -> None:
        async with joined(stage) as client:
            access = await (await client.get("/api/access")).json()
            assert access == {"read": True, "write": False, "changes": False}
            assert (await client.get("/api/history")).status == 200
            assert (await client.post(ACTIONS[0], headers=BEARER)).status == 403

    async def test_access_is_shown_to_its_holder(self, client: Joined) -> None:
        for headers, read, write in (({}, False, False), (READER, True, False), (BEARER, True, True)):
            access = await (await client.get("/api/access", headers=headers)).json()
            assert (access["read"], access["write"], access["changes"]) == (read, write, True)


class TestLive:
    async def test_sends_the_status_with_rates_and_counts_streams(self, client: Joined, stage: Stage) -> None:
        await stage.lead()
        async with client.get("/api/live", headers=READER) as response:
            assert response.content_type == "text/event-stream"
            kind, status = await event(response)
            assert kind == "status"
            assert status["components"][0]["name"] == "audit"
            assert status["components"][0]["events_per_s"] == 0.0
            refused = await client.get("/api/live", headers=READER)
            assert refused.status == 503
            assert "server.max_dashboards" in (await refused.json())["error"]
            metrics = await (await client.get("/metrics", headers=READER)).text()
            assert "astha_server_dashboards 1.0" in metrics
            samples = (await (await client.get("/api/history", headers=READER)).json())["samples"]
            assert len(samples) == 1
            assert list(samples[0]["components"]) == ["audit"]

    async def test_a_refused_operation_says_why(self, client: Joined, stage: Stage) -> None:
        await stage.lead()
        refused = await client.get("/api/tables/db.t/explain", headers=READER)
        assert refused.status == 409
        assert "no component of this daemon offers 'explain'" in (await refused.json())["error"]

    async def test_a_page_of_a_registry_that_hangs_says_so(
        self, client: Joined, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def hang() -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(stage.store, "list_topics", hang, raising=False)
        monkeypatch.setattr(dashboard, "_VIEW_TIMEOUT_S", 0.05)
        late = await client.get("/api/topics", headers=READER)
        assert late.status == 503
        assert "the registry does not respond" in (await late.json())["error"]
