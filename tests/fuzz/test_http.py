"""Malformed HTTP at the listener's real socket: it responds or closes, and continues to serve.

FUZZ_SECONDS says how long, SEED where it begins; what fails prints its seed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from tests.unit.astha.server.daemons import Stage, topics
from tests.unit.astha.server.joined import TOKEN, Joined, joined
from tests.waiting import eventually

SECONDS = float(os.environ.get("FUZZ_SECONDS") or 2)
SEED = int(os.environ.get("SEED") or 14)
_AT_ONCE = 8

PATHS = [
    b"/livez", b"/readyz", b"/status", b"/metrics", b"/events", b"/events?table=topics", b"/events?component=audit",
    b"/components/audit/refresh", b"/components/audit/pause", b"/components/audit/resume", b"/", b"*", b"//", b"/%00",
    b"/events?table=%ff%fe", b"/components/%2e%2e/refresh", b"http://evil.example/status", b"/" + b"a" * 9000,
]  # fmt: skip
METHODS = [b"GET", b"POST", b"HEAD", b"OPTIONS", b"CONNECT", b"PUT", b"", b"G\x00T", b"PRI"]
VERSIONS = [b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b"HTTP/1.1 x", b""]
HEADERS = [
    b"Host: localhost", b"Host: 127.0.0.1:9187", b"Host: evil.example", b"Host: [::1", b"Host:", b"Host: \xff\xfe",
    b"Authorization: Bearer " + TOKEN.encode(), b"Authorization: Bearer \xff\xfe\xfd", b"Authorization: Bearer",
    b"Authorization: Basic QQ==", b"Origin: null", b"Origin: http://evil.example", b"Origin: http://[",
    b"Connection: close", b"Connection: Upgrade", b"Upgrade: websocket", b"Upgrade: h2c", b"Content-Length: 5",
    b"Content-Length: -1", b"Content-Length: 99999999999999999999", b"Content-Length: 5\r\nContent-Length: 6",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: chunked, chunked", b"Expect: 100-continue", b"Expect: moon",
    b"Accept: */*, application/openmetrics-text", b"Accept-Encoding: gzip", b"Content-Encoding: gzip",
    b"X: " + b"y" * 9000, b" folded: line", b"no colon", b":empty",
    b"Range: bytes=0-1", b"Cookie: a=b; \x01", b"Content-Type: multipart/form-data; boundary=",
]  # fmt: skip
BODIES = [
    b"",
    b"hello",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"ffffffffffffffffff\r\n",
    b"-1\r\n",
    b"\x1f\x8b\x08\x00",
    b"\x00" * 100,
]
TLS_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


def conversation(chance: random.Random) -> list[bytes]:
    """Returns the pieces that one client sends."""
    if chance.random() < 0.05:
        return [
            chance.choice([TLS_HELLO, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", chance.randbytes(chance.randrange(2000))])
        ]
    raw = b"".join(request(chance) for _ in range(chance.choice([1, 1, 1, 2, 40])))
    data = bytearray(raw)
    for _ in range(chance.choice([0, 0, 1, 5])):
        place = chance.randrange(len(data))
        match chance.randrange(3):
            case 0:
                data[place] = chance.randrange(256)
            case 1:
                del data[place : place + chance.randrange(1, 20)]
            case _:
                data[place:place] = chance.randbytes(chance.randrange(1, 20))
        if not data:
            break
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice([0, 0, 1, 4])))
    return [bytes(data[start:end]) for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def request(chance: random.Random) -> bytes:
    usual = chance.random() < 0.6
    method = b"GET" if usual else chance.choice(METHODS)
    version = b"HTTP/1.1" if usual else chance.choice(VERSIONS)
    headers = [b"Host: localhost", *chance.choices(HEADERS, k=chance.randrange(5))]
    if chance.random() < 0.02:
        headers += [b"X%d: y" % number for number in range(2000)]
    end = b"\r\n" if chance.random() < 0.95 else b"\n"
    return end.join([b" ".join([method, chance.choice(PATHS), version]), *headers, b"", chance.choice(BODIES)])


@pytest.fixture
async def stage() -> Stage:
    stage = Stage("audit")
    await stage.lead()
    return stage


@pytest.fixture
async def served(stage: Stage) -> AsyncIterator[Joined]:
    async with joined(stage, token=TOKEN, max_connections=32, max_watchers=8, header_timeout_s=1.0) as served:
        yield served


async def test_whatever_is_sent_the_listener_goes_on(
    served: Joined, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(SEED)
    end = time.monotonic() + SECONDS
    conversations = 0
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    with caplog.at_level(logging.ERROR):
        while time.monotonic() < end:
            seeds = [chance.randrange(2**32) for _ in range(_AT_ONCE)]
            await asyncio.gather(*(talk(served.port, random.Random(seed)) for seed in seeds))
            stage.pass_by(topics(950 + conversations, "a"))
            conversations += len(seeds)
            complaints = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
            assert not complaints, f"SEED={SEED}, one of {seeds}: {complaints}"
            assert not failures, f"SEED={SEED}, one of {seeds}: {failures}"
    assert conversations >= _AT_ONCE
    async with asyncio.timeout(30):
        response = await served.get("/livez")
        assert (response.status, await response.json()) == (200, {"role": "leading", "alive": True})
    await eventually(lambda: not served.server.watched, "every watcher that left is forgotten")


async def talk(port: int, chance: random.Random) -> None:
    """Sends everything, reads for a moment and disconnects, sometimes with a reset."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in conversation(chance):
            writer.write(piece)
            await asyncio.sleep(0)
        async with asyncio.timeout(chance.choice([0.0, 0.01, 0.05])):
            await reader.read(1 << 16)
    except (TimeoutError, ConnectionError):
        pass
    finally:
        if chance.random() < 0.5:
            writer.transport.abort()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
