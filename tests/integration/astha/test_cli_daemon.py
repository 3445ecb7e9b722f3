"""`astha run` as a process on a real PostgreSQL, and the commands that talk to it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from astha.client import NoDaemon, Refused
from tests.integration.astha.processes import TOKEN, Astha, Daemon, add_topic, astha, postgres_registry, prepared
from tests.waiting import eventually_now

__all__ = ["astha", "postgres_registry"]  # fixtures

pytestmark = pytest.mark.slow

OUR_SLOT = "FROM pg_replication_slots WHERE database = current_database()"


@pytest.fixture
def daemon(astha: Astha) -> Daemon:
    daemon = astha.run()
    daemon.until_ready()
    return daemon


def audited(astha: Astha, ending: str) -> None:
    eventually_now(lambda: any(line.endswith(ending) for line in astha.audited()), f"{ending!r} in {astha.audited()}")


def ledger(url: str) -> dict[str, tuple[int | None, str, bool]]:
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT component, position, state, refresh_owed FROM ledger").fetchall()
    return {name: (position, state, owed) for name, position, state, owed in rows}


def test_delivers_and_ends_with_its_positions_written(astha: Astha, daemon: Daemon) -> None:
    audited(astha, "REFRESH ")
    add_topic(astha.url, "events")
    audited(astha, "INSERT events")
    daemon.send(signal.SIGTERM)
    assert daemon.ended() == 0
    position, state, owed = ledger(astha.url)["audit"]
    assert (state, owed) == ("live", False)
    with psycopg.connect(astha.url) as connection:
        row = connection.execute(
            "SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots WHERE database = current_database()"
        ).fetchone()
    assert position is not None
    assert row is not None
    assert 0 < row[0] <= position

    again = astha.run()
    again.until_ready()
    add_topic(astha.url, "later")
    audited(astha, "INSERT later")
    assert [line.split(" ", 1)[1] for line in astha.audited()] == ["REFRESH ", "INSERT events", "INSERT later"]


def test_status_metrics_and_health(astha: Astha, daemon: Daemon) -> None:
    add_topic(astha.url, "events")
    audited(astha, "INSERT events")
    status = daemon.client(TOKEN).get("/status")
    assert (status["ready"], status["leadership"]["role"]) == (True, "leading")
    assert status["components"][0]["counts"]["delivered"] == {"topics": {"INSERT": 1}}
    assert daemon.client().get("/livez")["alive"] is True

    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(b"\n".join(daemon.client(TOKEN).lines("/metrics")).decode())
        for sample in family.samples
    }
    assert samples["astha_component_events_total", "INSERT", "audit", "topics"] == 1
    assert samples["astha_component_delivery_latency_seconds_count", "audit"] == 1
    assert samples["astha_source_connected",] == 1
    assert ("process_cpu_seconds_total",) in samples
    shown = astha("status", "--server", daemon.url)
    assert shown.returncode == 0
    assert "leading" in shown.stdout
    assert "audit" in shown.stdout
    assert json.loads(astha("status", "--server", daemon.url, "--json").stdout)["ready"] is True


def test_refresh_pause_and_resume_need_the_token(astha: Astha, daemon: Daemon, tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        daemon.client().post("/components/audit/refresh")
    assert refused.value.status == 401
    wrong = astha("refresh", "audit", "--server", daemon.url, environment={"ASTHA_SERVER__TOKEN": "x" * 20})
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr == "astha: the token is not valid for this server\n"

    (tmp_path / "token").write_text(TOKEN)
    done = astha("refresh", "audit", "--server", daemon.url, "--token-file", str(tmp_path / "token"))
    assert done.returncode == 0, done.stderr
    assert "audit is recovering: requested by an operator" in done.stdout
    eventually_now(lambda: len([line for line in astha.audited() if "REFRESH" in line]) == 2, "the second refresh")

    paused = astha("pause", "audit", "--server", daemon.url, "--json")
    assert json.loads(paused.stdout)["state"] == "paused"
    status = astha("status", "--server", daemon.url)
    assert status.returncode == 1
    assert "component audit is paused: paused by an operator" in status.stdout
    eventually_now(lambda: ledger(astha.url)["audit"][1] == "paused", "the pause to be written")
    add_topic(astha.url, "unseen")
    assert astha("resume", "audit", "--server", daemon.url).returncode == 0
    daemon.until_ready()
    audited(astha, "REFRESH unseen")
    assert not any("INSERT" in line for line in astha.audited())


def test_an_unknown_component(astha: Astha, daemon: Daemon) -> None:
    result = astha("refresh", "absent", "--server", daemon.url)
    assert (result.returncode, result.stderr) == (1, "astha: there is no component 'absent'; there are audit\n")


def test_tail_prints_new_events(astha: Astha, daemon: Daemon) -> None:
    lines = daemon.client(TOKEN).lines("/events", table="topics", component="audit")
    assert next(lines) == b""  # from here on
    tail = subprocess.Popen(
        [sys.executable, "-m", "astha.cli", "tail", "--server", daemon.url, "--count", "1"],
        cwd=astha.directory, env=astha.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    written = 0
    while tail.poll() is None:  # it prints one of those written after it was connected
        add_topic(astha.url, f"events{written}")
        written += 1
        event = json.loads(next(line for line in lines if line))
        assert event["data"]["name"] == f"events{written - 1}"
    output, errors = tail.communicate()
    assert (tail.returncode, errors) == (0, "")
    assert "INSERT topics  name=events" in output
    refused = astha("tail", "--server", daemon.url, "--table", "segments")
    assert "no component subscribes to segments" in refused.stderr
    daemon.send(signal.SIGTERM)
    assert daemon.ended() == 0, "a watcher does not keep the daemon from stopping"


def test_another_daemon_stands_by_and_takes_over(astha: Astha, daemon: Daemon) -> None:
    standby = astha.run()
    standby.logged("another daemon leads, standing by")
    assert standby.client().get("/livez") == {"role": "standing by", "alive": True}
    with pytest.raises(Refused, match="standing by") as refused:
        standby.client(TOKEN).get("/readyz")
    assert refused.value.status == 503
    status = standby.client(TOKEN).get("/status")
    assert status["leadership"]["leader"] == daemon.client(TOKEN).get("/status")["leadership"]["holder"]
    assert astha("status", "--server", standby.url).returncode == 0
    told = astha("pause", "audit", "--server", standby.url)
    assert (told.returncode, "stands by" in told.stderr) == (1, True)

    add_topic(astha.url, "before")
    audited(astha, "INSERT before")
    daemon.send(signal.SIGKILL)
    daemon.ended()
    add_topic(astha.url, "between")
    standby.until_ready()
    audited(astha, "between")
    assert next(line for line in astha.audited() if "between" in line).startswith(f"{standby.process.pid} ")
    standby.send(signal.SIGTERM)
    assert standby.ended() == 0


def test_a_standby_can_be_stopped(astha: Astha, daemon: Daemon) -> None:
    standby = astha.run()
    standby.logged("another daemon leads, standing by")
    standby.send(signal.SIGINT)
    assert standby.ended() == 0
    assert daemon.client().get("/livez")["alive"] is True


def test_sighup_reloads_the_log_level(astha: Astha, tmp_path: Path) -> None:
    config = tmp_path / "astha.yaml"
    config.write_text("log: {level: warning}\n")
    daemon = astha.run("--config", str(config), "--set", "log.level=info")
    daemon.logged("source streaming")
    daemon.send(signal.SIGHUP)
    assert daemon.logged("log level reloaded")["level"] == "info", "a flag stays stronger than the file"
    config.write_text("log: [\n")
    daemon.send(signal.SIGHUP)
    assert "not YAML" in daemon.logged("settings can't be reloaded: log level unchanged")["error"]
    assert daemon.process.poll() is None


def test_systemd_is_notified(astha: Astha, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        daemon = astha.run(environment=environment)
        heard: list[str] = []
        while "STATUS=leading; components: 1 live" not in heard or heard.count("WATCHDOG=1") < 3:
            heard.append(systemd.recv(1000).decode())
        assert heard[0] == "READY=1"
        daemon.send(signal.SIGTERM)
        while "STOPPING=1" not in heard:
            heard.append(systemd.recv(1000).decode())
        assert daemon.ended() == 0


def test_a_second_signal_ends_it_at_once(astha: Astha) -> None:
    hanging = (astha.directory / "acme_audit.py").read_text().replace(
        'self._write(str(event.operation), event.data.name)',
        'self._write("HANGS", event.data.name)\n        import asyncio; await asyncio.Event().wait()',
    )  # fmt: skip
    (astha.directory / "acme_audit.py").write_text(hanging)
    daemon = astha.run()
    daemon.until_ready()
    add_topic(astha.url, "events")
    audited(astha, "HANGS events")
    daemon.send(signal.SIGTERM)
    daemon.logged("stop signal: delivering queued events")
    assert daemon.process.poll() is None
    with pytest.raises(Refused, match="stopping"):
        daemon.client(TOKEN).get("/readyz")
    daemon.send(signal.SIGTERM)
    assert daemon.ended() == 130


def test_without_a_subscribed_component(astha: Astha) -> None:
    (astha.directory / "subscriptions.yaml").write_text("components: {}\n")
    daemon = astha.run()
    daemon.until_ready()
    assert "no component is subscribed" in daemon.logged("no component is subscribed")["event"]
    with psycopg.connect(astha.url, autocommit=True) as connection:
        connection.execute("INSERT INTO topics VALUES ('events', 1, NULL, '{}', 1, 1)")
        row = connection.execute("SELECT pg_current_wal_lsn()").fetchone()
        assert row is not None
        query = "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE database = current_database()"
        eventually_now(
            lambda: connection.execute(query, [row[0]]).fetchone() == (True,), "the server to be let off its WAL"
        )
    assert "no component is subscribed" in astha("status", "--server", daemon.url).stdout
    daemon.send(signal.SIGTERM)
    assert daemon.ended() == 0


class TestFailedStarts:
    """One line, a code, and no traceback."""

    def ends(self, astha: Astha, code: int, *arguments: str, environment: dict[str, str] | None = None) -> str:
        daemon = astha.run(*arguments, environment=environment)
        assert daemon.ended() == code, daemon.lines
        (line,) = [line["event"] for line in daemon.lines if line["event"].startswith("astha: ")]
        assert not any("Traceback" in str(line) for line in daemon.lines)
        return str(line)

    def test_with_an_unreachable_server(self, astha: Astha) -> None:
        url = "postgresql://me:open-sesame@127.0.0.1:1/registry"
        line = self.ends(astha, 3, environment={"ASTHA_REGISTRY": url})
        assert "postgresql://me:***@127.0.0.1:1/registry" in line
        assert "sesame" not in line

    def test_on_a_port_in_use(self, astha: Astha) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            assert f"127.0.0.1:{port} is in use" in self.ends(astha, 3, "--set", f"server.port={port}")


def test_the_client_reports_that_the_daemon_is_gone(daemon: Daemon) -> None:
    client = daemon.client()
    daemon.send(signal.SIGKILL)
    daemon.ended()
    with pytest.raises(NoDaemon):
        client.get("/livez")


def test_a_thread_that_never_ends_does_not_keep_the_process(astha: Astha) -> None:
    path = astha.directory / "acme_audit.py"
    stuck = "\nimport threading\nthreading.Thread(target=threading.Event().wait).start()\n"
    path.write_text(path.read_text() + stuck)
    daemon = astha.run()
    daemon.until_ready()
    daemon.send(signal.SIGTERM)
    assert daemon.ended() == 0


def test_a_silent_source_is_not_ready_until_it_sends_again(astha: Astha) -> None:
    """The connection stays open and the process runs, but no data arrives."""
    daemon = astha.run("--set", "server.stall_after_s=1")
    daemon.until_ready()
    with psycopg.connect(astha.url, autocommit=True) as connection:
        row = connection.execute(f"SELECT active_pid {OUR_SLOT}".encode()).fetchone()
    assert row is not None
    os.kill(row[0], signal.SIGSTOP)
    try:
        eventually_now(lambda: "source is stalled: connected" in why_not_ready(daemon), "not ready any more", 60)
        assert daemon.client().get("/livez")["alive"] is True
    finally:
        os.kill(row[0], signal.SIGCONT)
    daemon.until_ready()


def why_not_ready(daemon: Daemon) -> str:
    try:
        daemon.client(TOKEN).get("/readyz")
    except Refused as refused:
        return str(refused)
    return ""


def test_the_same_on_sqlite(sqlite_url: str, tmp_path: Path) -> None:
    with prepared(sqlite_url, tmp_path) as astha:
        assert astha("check").returncode == 0
        daemon = astha.run()
        daemon.until_ready()
        add_topic(astha.url, "events")
        audited(astha, "INSERT events")
        source = daemon.client(TOKEN).get("/status")["source"]
        assert (source["connected"], source["unit"], source["lag"]) == (True, "changes", 0)
        assert any(b"astha_component_lag_changes" in line for line in daemon.client(TOKEN).lines("/metrics"))
        standby = astha.run()
        standby.logged("another daemon leads, standing by")
        daemon.send(signal.SIGTERM)
        assert daemon.ended() == 0
        standby.until_ready()
        add_topic(astha.url, "later")
        audited(astha, "INSERT later")
        assert [line.split(" ", 1)[1] for line in astha.audited()] == ["REFRESH ", "INSERT events", "INSERT later"]
