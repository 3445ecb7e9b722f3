from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from astha.systemd import Notifier


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.delenv("WATCHDOG_USEC", raising=False)
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        yield listening


def test_systemd_gets_every_message_and_a_status_only_when_it_changes(systemd: socket.socket) -> None:
    notifier = Notifier()
    notifier.ready()
    notifier.status("leading")
    notifier.status("leading")
    notifier.alive()
    notifier.stopping()
    notifier.close()
    assert [systemd.recv(100) for _ in range(4)] == [b"READY=1", b"STATUS=leading", b"WATCHDOG=1", b"STOPPING=1"]


@pytest.mark.usefixtures("systemd")
def test_the_watchdog_interval_is_half_of_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    notifier = Notifier()
    assert notifier.watchdog_interval_s() is None
    monkeypatch.setenv("WATCHDOG_USEC", "10000000")
    assert notifier.watchdog_interval_s() == 5.0
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert notifier.watchdog_interval_s() == 5.0
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert notifier.watchdog_interval_s() is None
    notifier.close()


def test_without_a_socket_nothing_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    Notifier().ready()
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    gone = Notifier()
    gone.ready()
    gone.close()


def test_an_abstract_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{tmp_path}")
        listening.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{tmp_path}")
        notifier = Notifier()
        notifier.ready()
        notifier.close()
        assert listening.recv(100) == b"READY=1"
