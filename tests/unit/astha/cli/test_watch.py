"""`astha status --watch`, without a daemon: `tests/integration` has one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner

from astha.cli import control, main
from astha.cli.exit_codes import Exit
from astha.client import NoDaemon

STATUS: dict[str, Any] = {
    "ready": True,
    "reasons": [],
    "registry": "sqlite:///registry.db",
    "clock": None,
    "leadership": {"role": "leading", "epoch": 3, "holder": "here", "leader": "here"},
    "source": {
        "connected": True, "received": 7, "lag": 0, "unit": "changes", "retained_bytes": None, "wal_status": None,
    },
    "components": [],
}  # fmt: skip


class Daemon:
    """Does not answer the second time."""

    def __init__(self) -> None:
        self.calls = 0

    def get(self, path: str) -> dict[str, Any]:
        assert path == "/status"
        self.calls += 1
        if self.calls == 2:
            raise NoDaemon("no daemon answers")
        return STATUS


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The user interrupts the third wait."""
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            raise KeyboardInterrupt

    daemon = Daemon()
    monkeypatch.setattr(control, "client_of", lambda *_: daemon)
    monkeypatch.setattr(control, "sleep", wait)
    yield waited
    assert daemon.calls == 3


def test_shows_it_again_and_survives_a_daemon_that_does_not_answer(waits: list[float]) -> None:
    result = CliRunner().invoke(main, ["status", "--watch"])
    assert result.exit_code == Exit.INTERRUPTED
    assert waits == [2.0, 2.0, 2.0]
    assert result.stdout.count("leading, epoch 3") == 2
    assert "no daemon answers" in result.stdout


def test_the_screen_is_cleared_when_the_next_text_is_there(waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is never empty for as long as a daemon takes to answer."""
    calls: list[str] = []
    get = Daemon.get

    def recorded(daemon: Daemon, path: str) -> dict[str, Any]:
        calls.append("read")
        return get(daemon, path)

    monkeypatch.setattr(Daemon, "get", recorded)
    monkeypatch.setattr(click, "clear", lambda: calls.append("clear"))
    CliRunner().invoke(main, ["status", "--watch"])
    assert calls == ["read", "clear"] * 3


def test_json_is_one_line_each_time(waits: list[float]) -> None:
    result = CliRunner().invoke(main, ["status", "--watch", "0.5", "--json"])
    first, second, third = map(json.loads, result.stdout.splitlines())
    assert (first, second, third) == (STATUS, {"error": "no daemon answers"}, STATUS)
    assert waits == [0.5, 0.5, 0.5]
