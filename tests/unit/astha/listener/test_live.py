from __future__ import annotations

import asyncio
from typing import cast

import pytest

from astha.listener import live
from astha.listener.live import Live
from astha.listener.queries import DaemonQueries


class Transport:
    """Takes what is written, or nothing."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.full = self.closing = self.aborted = False

    def get_write_buffer_size(self) -> int:
        return int(self.full)

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        self.taken.append(data)

    def abort(self) -> None:
        self.aborted = True


def opened() -> tuple[Live, Transport]:
    found, transport = Live(cast("DaemonQueries", None)), Transport()
    found.add(cast("asyncio.WriteTransport", transport))
    return found, transport


async def test_a_slow_client_skips_and_gets_the_next() -> None:
    found, transport = opened()
    transport.full = True
    found._publish("status", {"number": 1})
    transport.full = False
    found._publish("status", {"number": 2})
    assert len(transport.taken) == 1
    assert b'event: status\ndata: {"number":2}\n\n' in transport.taken[0]


async def test_a_client_that_reads_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    found, transport = opened()
    transport.full = True
    found._publish("status", {})
    assert (found.dropped, transport.aborted) == (0, False)
    monkeypatch.setattr(live, "_STALLED_AFTER_S", -1.0)
    found._publish("status", {})
    assert (found.dropped, transport.aborted) == (1, True)


async def test_a_new_client_gets_the_last_status_at_once() -> None:
    found, _ = opened()
    found._publish("status", {"number": 1})
    late = Transport()
    found.add(cast("asyncio.WriteTransport", late))
    assert b'"number":1' in late.taken[0]
