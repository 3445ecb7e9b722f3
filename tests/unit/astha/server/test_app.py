from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from astha.cli.control import _print_status
from astha.errors import AddressTaken, ConfigError
from astha.lanes.state import LaneState
from astha.server import actions
from astha.subscribers import Problem
from tests.unit.astha.server.daemons import HOLDER, LEADER, Stage, tables, topics
from tests.unit.astha.server.joined import BEARER, PASSWORD, READ_TOKEN, READER, TOKEN, Joined, joined, server_of
from tests.waiting import eventually

Client = Joined


@pytest.fixture
def stage() -> Stage:
    return Stage("audit", "index")


@pytest.fixture
async def client(stage: Stage) -> AsyncIterator[Client]:
    async with joined(stage, token=TOKEN, read_token=READ_TOKEN, tail_buffer_events=3) as client:
        yield client


async def ready(client: Client) -> tuple[int, list[str]]:
    response = await client.get("/readyz", headers=READER)
    return response.status, (await response.json())["reasons"]


async def test_a_password_that_is_also_a_key_does_not_break_the_status(client: Client, stage: Stage) -> None:
    client.server._responder._redact.add("state", "leadership", 'open"sesame')
    stage.source.connected, stage.source.detail = False, 'FATAL: password open"sesame in this state'
    status = await (await client.get("/status", headers=READER)).json()
    assert status["source"]["detail"] == "FATAL: password *** in this ***"
    assert {component["state"] for component in status["components"]} != set()
    assert "role" in status["leadership"]


class TestHealth:
    async def test_a_standby_is_alive_but_not_ready(self, client: Client) -> None:
        alive = await client.get("/livez")
        assert (alive.status, await alive.json()) == (200, {"role": "standing by", "alive": True})
        assert await ready(client) == (503, ["standing by: this daemon does not lead"])

    async def test_a_standby_is_ready_for_a_rollout(self, client: Client, stage: Stage) -> None:
        response = await client.get("/readyz?standby=ready")
        assert (response.status, await response.json()) == (200, {"ready": True, "role": "standing by", "reasons": []})
        stage.daemon.leadership.trouble = "connection refused"
        assert (await client.get("/readyz?standby=ready")).status == 503
        await stage.lead()
        assert (await client.get("/readyz?standby=ready")).status == 200
        stage.daemon.lanes[0].open_circuit("it raised")
        assert (await client.get("/readyz?standby=ready")).status == 503
        assert (await client.get("/readyz?standby=maybe")).status == 400

    async def test_a_leader_with_all_components_live_is_ready(self, client: Client, stage: Stage) -> None:
        await stage.lead()
        assert await ready(client) == (200, [])

    async def test_a_disconnected_source_is_named(self, client: Client, stage: Stage) -> None:
        await stage.lead()
        stage.source.connected, stage.source.detail = False, "connection refused"
        assert await ready(client) == (503, ["source is not connected: connection refused"])

    async def test_a_silent_source_is_stalled_though_connected(self, client: Client, stage: Stage) -> None:
        await stage.lead()
        stage.source.silent_s = 19.0
        assert await ready(client) == (200, [])
        stage.source.silent_s = 21.0
        status, (reason,) = await ready(client)
        assert status == 503
        assert reason.startswith("source is stalled: connected, but it has sent nothing for 21 s")

    async def test_every_component_that_is_not_live_is_named_with_its_reason(
        self, client: Client, stage: Stage
    ) -> None:
        await stage.lead()
        audit, index = stage.daemon.lanes
        audit.open_circuit("it raised")
        index.pause()
        assert await ready(client) == (
            503,
            ["component audit is broken: it raised", "component index is paused: paused by an operator"],
        )

    async def test_a_component_that_only_retries_is_not_ready(self, client: Client, stage: Stage) -> None:
        await stage.lead()
        stage.pass_by(topics(950, "a"))
        assert await ready(client) == (200, [])
        stage.daemon.lanes[0].intake.progress_at -= 21
        status, (reason,) = await ready(client)
        assert (status, reason) == (
            503, "component audit makes no progress: the same delivery has been tried for 21 s"
        )  # fmt: skip

    async def test_a_lease_that_was_not_renewed_is_not_ready(self, client: Client, stage: Stage) -> None:
        await stage.lead()
        await stage.clock.advance(9.5)
        status, reasons = await ready(client)
        assert status == 503
        assert reasons[0].startswith("leadership is uncertain")

    async def test_a_stopping_daemon_is_not_ready(self, client: Client, stage: Stage) -> None:
        await stage.lead()
        stage.daemon.stop()
        assert await ready(client) == (503, ["stopping"])


class TestStatus:
    async def test_shows_the_whole_state_of_a_leader(self, client: Client, stage: Stage) -> None:
        await stage.lead()
        stage.pass_by(topics(950, "a", "b", committed_at=(stage.clock.now_ms() - 500) * 1000))
        status = await (await client.get("/status", headers=READER)).json()
        assert status["leadership"] == {
            "role": "leading", "holder": HOLDER, "leader": HOLDER, "epoch": 7, "certain": True,
        }  # fmt: skip
        assert (status["source"]["received"], status["source"]["lag"], status["source"]["unit"]) == (950, 50, "bytes")
        audit = status["components"][0]
        assert (audit["name"], audit["state"], audit["position"], audit["lag"]) == ("audit", "live", 850, 100)
        assert audit["lag_s"] == 0.5
        assert (audit["queue"]["events"], audit["queue"]["bytes"]) == (2, 20)
        assert audit["breaker"] == {"state": "closed", "failures": 0, "retry_in_s": None}

    async def test_problems_of_single_tables_are_named_and_leave_it_ready(
        self, client: Client, stage: Stage, capsys: pytest.CaptureFixture[str]
    ) -> None:
        await stage.lead()
        assert (await ready(client))[0] == 200
        problem = Problem("shop.orders", f"no answer with {PASSWORD}", since=1_000, attempts=3, next_try=2_000)
        vars(stage.daemon.components[0].subscriber)["problems"] = lambda: [problem]
        assert (await ready(client))[0] == 200
        status = await (await client.get("/status", headers=READER)).json()
        assert [found["subject"] for found in status["components"][0]["problems"]] == ["shop.orders"]
        assert PASSWORD not in str(status)
        _print_status(status)
        shown = capsys.readouterr().out
        assert "yes, except for 1 problem below" in shown
        assert "audit: shop.orders: no answer with ***" in shown
        assert "since 1970-01-01 00:00:01 UTC, 3 attempts, next 1970-01-01 00:00:02 UTC" in shown

    async def test_of_a_standby_names_the_leader(self, client: Client) -> None:
        status = await (await client.get("/status", headers=READER)).json()
        assert (status["leadership"]["role"], status["leadership"]["leader"]) == ("standing by", LEADER)
        assert {component["state"] for component in status["components"]} == {"standing by"}

    async def test_a_registry_that_hangs_does_not_hold_the_status(
        self, client: Client, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """psycopg needs seconds to cancel a query of a server that does not respond."""
        lookups, released = [], asyncio.Event()

        async def hang(_name: str) -> None:
            lookups.append(1)
            try:
                await released.wait()
            finally:
                await released.wait()

        monkeypatch.setattr(stage.store, "get_daemon_lease", hang)
        monkeypatch.setattr(actions, "_LEADER_TIMEOUT_S", 0.01)
        for _ in range(2):
            status = await (await client.get("/status", headers=READER)).json()
            assert (status["leadership"]["role"], status["leadership"]["leader"]) == ("standing by", None)
        assert len(lookups) == 1
        released.set()

    async def test_a_secret_in_a_librarys_message_is_not_shown(self, client: Client, stage: Stage) -> None:
        await stage.lead()
        stage.daemon.lanes[0].open_circuit(f"can't connect with {PASSWORD}")
        for path in ("/status", "/readyz"):
            text = await (await client.get(path, headers=BEARER)).text()
            assert "can't connect with ***" in text
            assert PASSWORD not in text


class TestActions:
    @pytest.mark.parametrize("action", ["refresh", "pause", "resume"])
    async def test_need_a_token(self, client: Client, stage: Stage, action: str) -> None:
        await stage.lead()
        path = f"/components/audit/{action}"
        none = await client.post(path)
        assert none.status == 401
        assert none.headers["WWW-Authenticate"].startswith("Bearer")
        assert (await client.post(path, headers={"Authorization": TOKEN})).status == 401
        assert (await client.post(path, headers={"Authorization": "Bearer wrong"})).status == 403
        assert (await client.post(path, headers={"Authorization": f"Bearer {TOKEN}x"})).status == 403
        assert stage.daemon.lanes[0].state is LaneState.LIVE

    async def test_are_always_refused_if_the_daemon_has_no_token(self, stage: Stage) -> None:
        await stage.lead()
        async with joined(stage) as client:
            refused = await client.post("/components/audit/pause", headers=BEARER)
            assert refused.status == 403
            assert "ASTHA_SERVER__TOKEN" in (await refused.json())["error"]
        assert stage.daemon.lanes[0].state is LaneState.LIVE

    async def test_refresh_pause_and_resume(self, client: Client, stage: Stage) -> None:
        await stage.lead()
        states = []
        for action in ("refresh", "pause", "pause", "resume", "resume"):
            response = await client.post(f"/components/audit/{action}", headers=BEARER)
            assert response.status == 202
            states.append((await response.json())["state"])
        assert states == ["recovering", "paused", "paused", "recovering", "recovering"]
        assert stage.daemon.lanes[1].state is LaneState.LIVE

    async def test_a_paused_component_is_resumed_rather_than_refreshed(self, client: Client, stage: Stage) -> None:
        await stage.lead()
        await client.post("/components/audit/pause", headers=BEARER)
        refused = await client.post("/components/audit/refresh", headers=BEARER)
        assert refused.status == 409
        assert "resume it" in (await refused.json())["error"]

    async def test_an_unknown_component_or_action(self, client: Client, stage: Stage) -> None:
        await stage.lead()
        unknown = await client.post("/components/absent/refresh", headers=BEARER)
        assert unknown.status == 404
        assert "there are audit, index" in (await unknown.json())["error"]
        assert (await client.post("/components/audit/explode", headers=BEARER)).status == 404
        wrong = await client.get("/components/audit/refresh", headers=BEARER)
        assert (wrong.status, wrong.headers["Allow"]) == (405, "POST")

    async def test_a_daemon_without_a_registry_is_no_standby(self, client: Client, stage: Stage) -> None:
        stage.leadership.trouble = "connection refused"
        for refused in (
            await client.post("/components/audit/refresh", headers=BEARER),
            await client.get("/events", headers=BEARER),
        ):
            assert refused.status == 409
            assert (await refused.json())["error"] == "this daemon waits for the registry: connection refused"

    async def test_a_standby_names_the_leader(self, client: Client) -> None:
        for refused in (
            await client.post("/components/audit/refresh", headers=BEARER),
            await client.get("/events", headers=BEARER),
        ):
            assert refused.status == 409
            assert LEADER in (await refused.json())["error"]


class TestEvents:
    async def test_are_streamed_as_json_lines(self, client: Client, stage: Stage) -> None:
        await stage.lead()
        async with client.get("/events", headers=BEARER) as response:
            assert await response.content.readline() == b"\n"
            stage.pass_by(topics(950, "a", "b"))
            first, second = [json.loads(await response.content.readline()) for _ in range(2)]
        assert (first["table"], first["operation"], first["position"]) == ("topics", "INSERT", 950)
        assert first["data"]["config"] == {"a": [1]}
        assert (first["before"], first["last"], second["last"]) == (None, False, True)

    async def test_need_the_token_if_one_is_set(self, client: Client) -> None:
        assert (await client.get("/events")).status == 401

    async def test_a_transaction_beyond_the_limit_is_reported_as_missed(self, client: Client, stage: Stage) -> None:
        await stage.lead()
        async with client.get("/events", headers=BEARER) as response:
            assert await response.content.readline() == b"\n"
            stage.pass_by(topics(950, "a", "b"), topics(951, "c", "d", "e", "f"))
            lines = [json.loads(await response.content.readline()) for _ in range(3)]
            assert [line["data"]["name"] for line in lines[:2]] == ["a", "b"]
            assert lines[2] == {"missed": 4}
            stage.pass_by(topics(953, "g"))
            assert json.loads(await response.content.readline())["data"]["name"] == "g"

    @pytest.mark.parametrize(
        ("query", "complaint"),
        [
            ("table=absent", "there is no table 'absent'"),
            ("table=segments", "no component subscribes to segments"),
            ("component=absent", "there is no component 'absent'"),
            ("component=audit&table=segments", "component audit does not subscribe to segments"),
        ],
    )
    async def test_tables_and_components_that_can_not_be_watched(
        self, client: Client, stage: Stage, query: str, complaint: str
    ) -> None:
        await stage.lead()
        refused = await client.get(f"/events?{query}", headers=BEARER)
        assert refused.status == 404
        assert complaint in (await refused.json())["error"]

    async def test_a_filter_excludes_other_tables(self, client: Client, stage: Stage) -> None:
        await stage.lead()
        async with client.get("/events?table=tables&component=audit", headers=BEARER) as response:
            assert await response.content.readline() == b"\n"
            stage.pass_by(topics(950, "a"), tables(951, "b"), topics(952, "c"), tables(953, "d"))
            passed = [json.loads(await response.content.readline())["data"]["name"] for _ in range(2)]
        assert passed == ["b", "d"]

    async def test_a_watcher_that_leaves_is_removed(self, client: Client, stage: Stage) -> None:
        await stage.lead()
        async with client.get("/events?table=topics", headers=BEARER) as response:
            assert await response.content.readline() == b"\n"
            assert client.server.watched == {"topics"}
        await eventually(lambda: not client.server.watched, "nothing is encoded any more")

    async def test_watchers_beyond_the_limit_are_refused(self, stage: Stage) -> None:
        await stage.lead()
        async with joined(stage, max_watchers=1) as client, client.get("/events") as response:
            assert await response.content.readline() == b"\n"
            refused = await client.get("/events")
            assert refused.status == 503
            assert "server.max_watchers" in (await refused.json())["error"]


class TestListening:
    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])  # noqa: S104
    def test_an_address_that_other_machines_can_reach_needs_a_token(self, stage: Stage, host: str) -> None:
        with pytest.raises(ConfigError, match=r"which other machines can reach: set server\.token"):
            server_of(stage, host=host)
        server_of(stage, host=host, token=TOKEN)

    async def test_an_address_in_use_is_named(self, stage: Stage) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(AddressTaken, match=f"127.0.0.1:{port}"):
                await server_of(stage, port=port).start()

    async def test_an_address_of_another_machine(self, stage: Stage) -> None:
        with pytest.raises(ConfigError, match=r"can't listen on 192\.0\.2\.1"):
            await server_of(stage, host="192.0.2.1", token=TOKEN).start()

    async def test_a_free_port_is_used_and_released(self, stage: Stage) -> None:
        server = server_of(stage)
        url = await server.start()
        assert url.startswith("http://127.0.0.1:")
        assert not url.endswith(":0")
        await server.stop()
        assert stage.daemon.observers == []
        with socket.create_server(("127.0.0.1", int(url.rpartition(":")[2]))) as free:
            assert free.fileno() >= 0


async def test_an_internal_error_is_logged_and_not_shown(client: Client, stage: Stage) -> None:
    def fail() -> None:
        raise RuntimeError(PASSWORD)

    stage.source.status = fail  # type: ignore[method-assign,assignment]
    await stage.leadership.acquire()
    response = await client.get("/status", headers=READER)
    assert response.status == 500
    assert PASSWORD not in await response.text()


def test_the_token_file_is_read(stage: Stage, tmp_path: Path) -> None:
    kept = tmp_path / "token"
    kept.write_text(TOKEN)
    server_of(stage, host="10.0.0.1", token_file=kept)


class TestClients:
    async def test_a_foreign_host_or_origin_is_refused_everywhere(self, client: Client, stage: Stage) -> None:
        await stage.lead()
        for path in ("/livez", "/status", "/events", "/absent"):
            for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
                refused = await client.get(path, headers={**BEARER, **headers})
                assert refused.status == 403, (path, headers)
        refused = await client.post("/components/audit/pause", headers={**BEARER, "Origin": "http://evil.example"})
        assert refused.status == 403
        assert stage.daemon.lanes[0].state is LaneState.LIVE

    async def test_without_the_token_probes_see_no_names(self, client: Client, stage: Stage) -> None:
        await stage.lead()
        stage.daemon.lanes[0].open_circuit("it raised")
        response = await client.get("/readyz")
        assert (response.status, (await response.json())["reasons"]) == (
            503, ["reasons (1) are shown to callers with a token"]
        )  # fmt: skip

    async def test_metrics_and_status_need_a_token_unless_open(self, client: Client, stage: Stage) -> None:
        for path in ("/metrics", "/status"):
            assert (await client.get(path)).status == 401
            assert (await client.get(path, headers=READER)).status == 200
        async with joined(stage, token=TOKEN, open_paths="metrics") as opened:
            assert (await opened.get("/metrics")).status == 200
            assert (await opened.get("/status")).status == 401

    async def test_a_component_whose_name_is_not_text(self, client: Client, stage: Stage) -> None:
        await stage.lead()
        assert (await client.post("/components/%FF%FE/pause", headers=BEARER)).status == 404


async def test_any_number_of_scrapes_is_one_collection(client: Client, stage: Stage) -> None:
    await stage.lead()
    counted = 0
    status = stage.source.status

    def counting() -> object:
        nonlocal counted
        counted += 1
        return status()

    stage.source.status = counting  # type: ignore[method-assign,assignment]
    responses = await asyncio.gather(*(client.get("/metrics", headers=READER) for _ in range(50)))
    assert {response.status for response in responses} == {200}
    assert counted < 25, "one for each second that it took"
    text = await responses[0].text()
    assert "astha_server_connections " in text
    assert "astha_server_restarts_total 0.0" in text
    other = await client.get("/metrics", headers={**READER, "Accept": "application/openmetrics-text; version=1.0.0"})
    assert other.content_type == "application/openmetrics-text"
    assert (await other.text()).endswith("# EOF\n")
