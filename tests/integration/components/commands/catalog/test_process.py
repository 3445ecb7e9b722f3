"""`astha catalog` as a process: it starts, serves, and ends when it is told to."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import OAuthError

from astha.listener.connections import Connections
from astha.settings import Settings
from astha.systemd import Notifier
from components.commands.catalog.process import running, until_stopped
from registry.contract import MetadataStore
from tests.fixtures.databases import MakeDatabase
from tests.waiting import eventually_now

pytestmark = pytest.mark.slow


_SETTINGS = ("--set", "log.format=json", "--set", "lake.warehouse=s3://lake/warehouse")


def command(url: str, *settings: str) -> list[str]:
    flags = [part for setting in settings for part in ("--set", setting)]
    return [sys.executable, "-m", "astha.cli", "catalog", "--registry", url, *_SETTINGS, *flags]


def environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("ASTHA_")} | more


@contextmanager
def catalog(url: str, **more: str) -> Iterator[tuple[subprocess.Popen[str], list[dict[str, object]]]]:
    process = subprocess.Popen(
        command(url, "catalog.port=0"), stderr=subprocess.PIPE, text=True, env=environment(**more)
    )
    assert process.stderr is not None
    try:
        lines: list[dict[str, object]] = []
        for text in process.stderr:
            lines.append(json.loads(text))
            if "url" in lines[-1]:
                break
        yield process, lines
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_it_serves_until_it_is_stopped(store: MetadataStore, url: str) -> None:
    with catalog(url) as (process, lines):
        address = f"{lines[-1]['url']}/v1/namespaces"
        with urllib.request.urlopen(address) as response:  # noqa: S310  (http, see above)
            assert json.load(response) == {"namespaces": [], "next-page-token": None}
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_clients_use_any_of_several_processes(store: MetadataStore, url: str, tmp_path: Path) -> None:
    secret = "a-secret-of-some-length"
    (tmp_path / "key").write_text("k" * 40)
    clients = {"spark": {"secret": secret, "grants": {"sales": "read"}}}
    settings = {
        "ASTHA_CATALOG__CLIENTS": json.dumps(clients),
        "ASTHA_CATALOG__TOKEN_KEY_FILE": str(tmp_path / "key"),
    }
    with catalog(url, **settings) as (one, of_one), catalog(url, **settings) as (_, of_two):
        first, second = of_one[-1]["url"], of_two[-1]["url"]
        login = f"{first}/v1/oauth/tokens"
        rest = RestCatalog("lake", **{"uri": str(second), "oauth2-server-uri": login}, credential=f"spark:{secret}")
        assert rest.list_namespaces() == []
        with pytest.raises(OAuthError):
            RestCatalog("lake", **{"uri": str(second), "oauth2-server-uri": login}, credential=f"spark:{secret}!")
        one.send_signal(signal.SIGTERM)
        assert one.stderr is not None
        written = one.stderr.read()
        assert "login refused" in written
        assert secret not in written


def test_systemd_is_told_when_it_is_ready(store: MetadataStore, url: str, tmp_path: object) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(f"{tmp_path}/notify")
        told.settimeout(60)
        with catalog(url, NOTIFY_SOCKET=f"{tmp_path}/notify"):
            seen: set[bytes] = set()

            def both() -> bool:
                seen.add(told.recv(200))
                return {b"READY=1", b"WATCHDOG=1"} <= seen

            eventually_now(both, f"READY and WATCHDOG in {seen}")


async def test_it_ends_if_it_can_accept_no_connection(
    store: MetadataStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: Connections, listening: socket.socket) -> None:
        raise RuntimeError("no more connections")

    monkeypatch.setattr(Connections, "accept", fail)
    settings = Settings.model_validate(
        {"registry": {"url": url}, "lake": {"warehouse": "s3://lake/warehouse"}, "catalog": {"port": 0}}
    )
    async with running(settings) as catalog:
        with pytest.raises(RuntimeError, match="no more connections"):
            await asyncio.wait_for(until_stopped(asyncio.Event(), catalog.tasks, Notifier()), 60)


@pytest.mark.parametrize(
    ("setting", "code", "reason"),
    [
        ("catalog.host=0.0.0.0", 2, "set catalog.token (ASTHA_CATALOG__TOKEN)"),
        (
            "catalog.tls_key_file=missing.pem",
            2,
            "catalog.tls_certificate_file and catalog.tls_key_file belong together",
        ),
        ("catalog.port=taken", 3, "is in use by another process: stop it, or set catalog.port"),
    ],
)
def test_it_says_why_it_does_not_start(store: MetadataStore, url: str, setting: str, code: int, reason: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = setting.replace("taken", str(taken.getsockname()[1]))
        done = subprocess.run(command(url, given), capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == code, done.stderr
    assert reason in done.stderr


def test_a_registry_without_a_schema_is_a_mistake_that_no_restart_corrects(new_database: MakeDatabase) -> None:
    url = new_database()
    commands = [command(url), [sys.executable, "-m", "astha.cli", "run", "--registry", url]]
    for each in commands:
        done = subprocess.run(each, capture_output=True, text=True, check=False, env=environment())
        assert done.returncode == 2, done.stderr
        assert done.stderr.splitlines()[-1].startswith("astha: ")
        assert done.stderr.endswith("holds no registry: run `astha registry migrate`\n")
