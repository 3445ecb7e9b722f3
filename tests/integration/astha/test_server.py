"""The HTTP server of a real daemon under clients that mean no good, or that are many."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from sqlalchemy import text

from astha.client import Client, NoDaemon, Refused
from astha.server import server as server_module
from registry.engines import StoreSettings, parse_url, sync_engine
from tests.integration.astha.processes import TOKEN, Astha, Daemon, add_topic, prepared
from tests.tls import AUTHORITY, CERTIFICATE, KEY, OTHER_KEY
from tests.unit.astha.server.daemons import Stage
from tests.unit.astha.server.joined import server_of
from tests.waiting import eventually, eventually_now

pytestmark = pytest.mark.slow

READ_TOKEN = "a-token-that-only-reads"


@pytest.fixture
def astha(sqlite_url: str, tmp_path: Path) -> Iterator[Astha]:
    with prepared(sqlite_url, tmp_path) as command:
        yield command


def delivered(astha: Astha, name: str) -> None:
    """A commit now reaches the component."""
    add_topic(astha.url, name)
    eventually_now(lambda: any(line.endswith(f"INSERT {name}") for line in astha.audited()), f"delivery of {name}", 60)


def epoch(daemon: Daemon) -> int:
    return int(daemon.client(TOKEN).get("/status")["leadership"]["epoch"])


def address(daemon: Daemon) -> tuple[str, int]:
    parts = urlsplit(daemon.url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def children(pid: int) -> list[int]:
    return [int(found) for found in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def listener_of(daemon: Daemon) -> int:
    """Returns its process id, once it responds."""
    daemon.client().get("/livez")
    (pid,) = children(daemon.process.pid)
    return pid


def peak_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def watch(daemon: Daemon) -> socket.socket:
    """A watcher that has its first line."""
    return begun(ask_for_events(daemon))


def ask_for_events(daemon: Daemon) -> socket.socket:
    client = socket.create_connection(address(daemon), timeout=60)
    client.sendall(f"GET /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
    return client


def begun(client: socket.socket) -> socket.socket:
    head = b""
    while b"1\r\n\n\r\n" not in head:
        head += client.recv(1)
        assert b" 200 " in head or len(head) < 40, head
    return client


@contextmanager
def descriptors(soft: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, before[1]), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_silent_connections_beyond_all_limits_leave_delivery_and_lease_alone(astha: Astha) -> None:
    with descriptors(1024):  # what a daemon has by default
        daemon = astha.run()
    daemon.until_ready()
    before = epoch(daemon)
    with descriptors(4096), ExitStack() as stack:
        for _ in range(1_100):
            with suppress(OSError):  # refused, which is as good
                stack.enter_context(socket.create_connection(address(daemon), timeout=10))
        for number in range(5):
            delivered(astha, f"during{number}")
        eventually_now(lambda: answers(daemon), "a probe is answered among them", 60)
        assert epoch(daemon) == before
        open_files = list(Path(f"/proc/{daemon.process.pid}/fd").iterdir())
        assert len(open_files) < 100, "the daemon's own descriptors are not for clients"
    delivered(astha, "after")
    assert epoch(daemon) == before
    assert len(daemon.lines) < 60, "the flood is not a flood of log lines"
    assert any("server.max_connections" in str(line.get("message")) for line in daemon.lines)


def answers(daemon: Daemon) -> bool:
    with suppress(NoDaemon, Refused):
        return bool(daemon.client().get("/livez")["alive"])
    return False


def add_large_topics(url: str, *names: str) -> None:
    engine = sync_engine(parse_url(url), StoreSettings())
    config = json.dumps({"filler": "x" * 1_000_000})
    for name in names:
        with engine.connect() as connection:
            connection.execute(
                text("INSERT INTO topics VALUES (:name, 1, NULL, :config, 1, 1)"), {"name": name, "config": config}
            )
    engine.dispose()


def test_a_watcher_that_does_not_read_large_rows_is_bounded_in_bytes(astha: Astha) -> None:
    daemon = astha.run()
    daemon.until_ready()
    pids = (daemon.process.pid, listener_of(daemon))
    add_large_topics(astha.url, *(f"unwatched{number}" for number in range(100)))
    eventually_now(lambda: any(line.endswith("unwatched99") for line in astha.audited()), "a hundred, unwatched", 60)
    before = [peak_mb(pid) for pid in pids]
    with watch(daemon) as unread:
        add_large_topics(astha.url, *(f"watched{number}" for number in range(100)))
        eventually_now(lambda: any(line.endswith("INSERT watched99") for line in astha.audited()), "all of them", 60)
        grown = [peak_mb(pid) - peak for pid, peak in zip(pids, before, strict=True)]
        assert sum(grown) < 64, f"daemon and listener grew by {grown} MB: 100 MB wait for a watcher"
        seen = b""
        while b'{"missed":' not in seen:
            seen = seen[-20:] + unread.recv(1 << 20)


def test_hundreds_of_watchers_get_every_event_and_more_are_refused(astha: Astha) -> None:
    daemon = astha.run(environment={"ASTHA_SERVER__MAX_WATCHERS": "300"})
    daemon.until_ready()
    before = epoch(daemon)
    with descriptors(4096), ExitStack() as stack, selectors.DefaultSelector() as selector:
        for client in [stack.enter_context(ask_for_events(daemon)) for _ in range(300)]:
            selector.register(begun(client), selectors.EVENT_READ)
        with pytest.raises(Refused, match=r"server\.max_watchers"):
            next(daemon.client(TOKEN).lines("/events"))
        for number in range(5):
            delivered(astha, f"watched{number}")
        waiting = set(selector.get_map())
        seen = dict.fromkeys(waiting, b"")
        while waiting:
            ready = selector.select(60)
            assert ready, f"{len(waiting)} watchers have not got the last"
            for key, _ in ready:
                seen[key.fd] += key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                if b'"watched4"' in seen[key.fd]:
                    waiting.discard(key.fd)
        assert all(lines.index(b"watched0") < lines.index(b"watched4") for lines in seen.values())
        assert epoch(daemon) == before


def test_a_listener_that_dies_is_replaced_and_deliveries_continue(astha: Astha) -> None:
    daemon = astha.run()
    daemon.until_ready()
    first = listener_of(daemon)
    os.kill(first, signal.SIGKILL)
    delivered(astha, "meanwhile")
    assert daemon.logged("HTTP listener ended")["exit_code"] == -signal.SIGKILL
    eventually_now(lambda: answers(daemon), "the next one", 60)
    assert listener_of(daemon) != first
    with watch(daemon) as watcher:
        delivered(astha, "watched")
        seen = b""
        while b'"watched"' not in seen:
            seen += watcher.recv(1 << 16)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a terminal or systemd sends them to all processes
        os.kill(listener_of(daemon), number)
    assert answers(daemon)
    daemon.send(signal.SIGTERM)
    assert daemon.ended() == 0


async def test_a_listener_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_CHECK_S", 2.0)
    monkeypatch.setattr(server_module, "_MAX_SILENT_CHECKS", 4)
    monkeypatch.setattr(server_module, "_STOP_TIMEOUT_S", 0.1)
    others = set(children(os.getpid()))

    def ours() -> set[int]:
        return set(children(os.getpid())) - others

    stage = Stage("audit")
    server = server_of(stage)

    async def replaced() -> bool:
        await stage.clock.advance(0.1)  # it waits for a moment before it starts another
        return bool(ours() - {pid})

    try:
        port = urlsplit(await server.start()).port
        first = await asyncio.to_thread(Client(f"http://127.0.0.1:{port}").get, "/livez")
        assert first["alive"]
        (pid,) = ours()
        os.kill(pid, signal.SIGSTOP)
        await eventually(replaced, "another listener", 60)
        again = await asyncio.to_thread(Client(f"http://127.0.0.1:{port}").get, "/livez")
        assert again["alive"]
    finally:
        await server.stop()
    assert ours() == set()


def test_the_listener_of_a_killed_daemon_exits(astha: Astha) -> None:
    daemon = astha.run()
    daemon.until_ready()
    pid, (host, port) = listener_of(daemon), address(daemon)
    daemon.process.kill()
    again = astha.run("--set", f"server.port={port}")  # at once, on the same port
    assert again.url == f"http://{host}:{port}"
    again.until_ready()
    eventually_now(lambda: not Path(f"/proc/{pid}").exists(), "the old listener's end")


def test_a_frozen_daemon_is_not_alive(astha: Astha) -> None:
    daemon = astha.run()
    daemon.until_ready()
    daemon.send(signal.SIGSTOP)
    try:
        with pytest.raises(Refused) as refused:
            daemon.client().get("/livez")
        assert refused.value.status == 503
    finally:
        daemon.send(signal.SIGCONT)
    eventually_now(lambda: answers(daemon), "it moves again", 60)


def test_the_read_token_reads_and_probes_reveal_no_names(astha: Astha) -> None:
    daemon = astha.run(environment={"ASTHA_SERVER__READ_TOKEN": READ_TOKEN})
    daemon.until_ready()
    for path in ("/status", "/metrics"):
        with pytest.raises(Refused, match="a token is required"):
            list(daemon.client().lines(path))
    assert daemon.client(READ_TOKEN).get("/status")["components"][0]["name"] == "audit"
    with pytest.raises(Refused, match="only allows reading"):
        daemon.client(READ_TOKEN).post("/components/audit/pause")
    daemon.client(TOKEN).post("/components/audit/pause")
    with pytest.raises(Refused) as anonymous:
        daemon.client().get("/readyz")
    assert (anonymous.value.status, str(anonymous.value)) == (503, "reasons (1) are shown to callers with a token")
    with pytest.raises(Refused, match="component audit is paused"):
        daemon.client(READ_TOKEN).get("/readyz")
    reader = {"ASTHA_SERVER__TOKEN": "", "ASTHA_SERVER__READ_TOKEN": READ_TOKEN}
    environment = {**astha.environment, **reader}
    del environment["ASTHA_SERVER__TOKEN"]
    shown = subprocess.run(
        [sys.executable, "-m", "astha.cli", "status", "--server", daemon.url],
        cwd=astha.directory, env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert "component audit is paused" in shown.stdout, shown.stderr


def test_over_tls_with_the_commands_and_without_an_authority(astha: Astha) -> None:
    served = {"ASTHA_SERVER__TLS_CERTIFICATE_FILE": str(CERTIFICATE), "ASTHA_SERVER__TLS_KEY_FILE": str(KEY)}
    daemon = astha.run(environment=served)
    url = daemon.url
    assert url.startswith("https://127.0.0.1:")
    trusting = {"ASTHA_SERVER__TLS_CA_FILE": str(AUTHORITY)}

    def ready() -> bool:
        return astha("status", "--server", url, environment=trusting).returncode == 0

    eventually_now(ready, "ready over TLS", 60)
    done = astha("refresh", "audit", "--server", url.replace("127.0.0.1", "localhost"), environment=trusting)
    assert done.returncode == 0, done.stderr
    untrusted = astha("status", "--server", url)
    assert untrusted.returncode == 3
    assert "server.tls_ca_file" in untrusted.stderr
    plain = astha("status", "--server", url.replace("https", "http"))
    assert (plain.returncode, plain.stdout) == (3, "")
    tail = subprocess.Popen(
        [sys.executable, "-m", "astha.cli", "tail", "--server", url, "--count", "1", "--json"],
        cwd=astha.directory, env={**astha.environment, **trusting}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    number = 0
    while tail.poll() is None:
        delivered(astha, f"tls{number}")
        number += 1
    assert json.loads(tail.communicate()[0])["data"]["name"].startswith("tls")


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"certificate": CERTIFICATE, "key": OTHER_KEY}, "key values mismatch"),
        ({"certificate": CERTIFICATE, "key": Path("absent.key")}, "No such file"),
        ({"certificate": CERTIFICATE}, "belong together"),
    ],
)
def test_check_and_run_refuse_files_that_are_not_a_certificate_and_its_key(
    astha: Astha, files: dict[str, Path], complaint: str
) -> None:
    environment = {f"ASTHA_SERVER__TLS_{name.upper()}_FILE": str(path) for name, path in files.items()}
    checked = astha("check", "--json", environment=environment)
    assert checked.returncode == 1
    found: list[dict[str, Any]] = json.loads(checked.stdout)["results"]
    (about,) = [result for result in found if result["check"] == "server address"]
    assert (about["verdict"], complaint in about["detail"]) == ("problem", True), about
    run = astha("run", environment=environment)
    assert (run.returncode, complaint in run.stderr) == (2, True), run.stderr
