"""Clients of the daemon's HTTP server, all in one process: raw sockets that read and discard.

They are as cheap as clients can be, and nice, because those of a daemon at work are on other machines.
"""

from __future__ import annotations

import multiprocessing
import os
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import urlsplit

_NICENESS = 10
_LIMIT_S = 60
_READ_BYTES = 1 << 18
_END_OF_HEADERS = b"\r\n\r\n"
_EVENTS, _LIVE = "/events", "/api/live"


@contextmanager
def clients(
    url: str, *, watchers: int = 0, scrapers: int = 0, dashboards: int = 0, pause_s: float = 0.1
) -> Iterator[dict[str, Any]]:
    """On entry all watchers and dashboards have received something; at the end the yielded dict holds what all of them
    received.
    """
    processes = multiprocessing.get_context("forkserver")
    ours, theirs = processes.Pipe()
    process = processes.Process(target=_load, args=(url, watchers, scrapers, dashboards, pause_s, theirs), daemon=True)
    process.start()
    theirs.close()
    found: dict[str, Any] = {}
    try:
        if not ours.poll(_LIMIT_S):
            raise SystemExit(f"{watchers} watchers and {dashboards} dashboards are not connected after {_LIMIT_S} s")
        ours.recv()
        yield found
        ours.send("end")
        found.update(ours.recv())
    finally:
        process.kill()
        process.join(_LIMIT_S)


class _Client:
    """`wants` is the time of its next request; one that streams makes only one."""

    def __init__(self, address: tuple[str, int], path: str) -> None:
        self.sock = socket.create_connection(address, timeout=_LIMIT_S)
        self.request = f"GET {path} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\n\r\n".encode()
        self.streams = path in (_EVENTS, _LIVE)
        self.wants = 0.0 if self.streams else float("-inf")
        self.answer = b""
        self.began = False
        if self.streams:
            self.sock.sendall(self.request)
        self.sock.setblocking(False)

    def ask(self) -> None:
        self.wants = float("inf")
        self.sock.sendall(self.request)

    def complete(self, data: bytes) -> bool:
        """Returns whether the response to a scrape is complete."""
        self.answer += data
        head, separator, body = self.answer.partition(_END_OF_HEADERS)
        if not separator:
            return False
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        if len(body) < length:
            return False
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise SystemExit(f"a scrape was answered {head[:100]!r}")
        self.answer = b""
        return True


def _load(url: str, watchers: int, scrapers: int, dashboards: int, pause_s: float, parent: Connection) -> None:
    os.nice(_NICENESS)
    parts = urlsplit(url)
    _Load((parts.hostname or "127.0.0.1", parts.port or 80), watchers, scrapers, dashboards, pause_s).run(parent)


class _Load:
    def __init__(self, address: tuple[str, int], watchers: int, scrapers: int, dashboards: int, pause_s: float) -> None:
        self._selector = selectors.DefaultSelector()
        self._pause_s = pause_s
        self._silent = watchers + dashboards  # that have received nothing
        self._bytes = self._scrapes = 0
        streaming = [_Client(address, path) for path in [_EVENTS] * watchers + [_LIVE] * dashboards]
        self._scraping = [_Client(address, "/metrics") for _ in range(scrapers)]
        for client in (*streaming, *self._scraping):
            self._selector.register(client.sock, selectors.EVENT_READ, client)

    def run(self, parent: Connection) -> None:
        self._selector.register(parent, selectors.EVENT_READ, None)
        while self._silent:
            self._turn()
        parent.send("ready")
        cpu = time.process_time()
        while self._turn():
            pass
        parent.send({"bytes": self._bytes, "scrapes": self._scrapes, "cpu": time.process_time() - cpu})

    def _turn(self) -> bool:
        """Returns False when told to end."""
        now = time.monotonic()
        for client in self._scraping:
            if client.wants <= now:
                client.ask()
        for key, _ in self._selector.select(self._pause_s / 4 if self._scraping else None):
            if key.data is None:
                return False
            self._read(key.data)
        return True

    def _read(self, client: _Client) -> None:
        data = client.sock.recv(_READ_BYTES)
        if not data:
            raise SystemExit(f"the server ended a connection after {client.answer[:200]!r}")
        self._bytes += len(data)
        if not client.streams:
            if client.complete(data):
                self._scrapes += 1
                client.wants = time.monotonic() + self._pause_s
        elif not client.began:
            if b" 200 " not in data.split(b"\r\n")[0]:
                raise SystemExit(f"a stream was answered {data[:300]!r}")
            client.began = True
            self._silent -= 1
