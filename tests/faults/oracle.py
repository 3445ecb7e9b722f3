"""The oracle: writers at random, components and machinery failing at random, and in the end the database is right.

After quiet every component's rows equal the database's own, and none of them has ever seen an order violated, a
transaction split, an event that a refresh contained, or one missing after it.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import psycopg

from registry.connect import open_store
from registry.contract import MetadataStore
from registry.embedded_postgres import EmbeddedPostgres
from tests.doubles.proxy import TcpProxy
from tests.faults.daemon_process import COMPONENTS, STATE_END, ProcessOptions
from tests.faults.durable_component import KINDS, RecordedState, comparable
from tests.faults.writers import SqlWriter, Writer
from tests.waiting import eventually

SETTLE_S = 120.0
_TAIL_CHARACTERS = 40_000
STRICT = [
    "-W", "error",
    "-W", "ignore:read_text is deprecated:DeprecationWarning",  # by kafka-python
    "-W", "ignore:open_text is deprecated:DeprecationWarning",
]  # fmt: skip


class Process:
    """The daemon, one incarnation after another."""

    def __init__(self, options: ProcessOptions, seed: str) -> None:
        self._options = options
        self._seed = seed
        self.incarnation = 0
        self.log = Path(options.directory) / "daemon.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.incarnation += 1
        options = msgspec.structs.replace(self._options, seed=f"{self._seed} {self.incarnation} ")
        self.ready().unlink(missing_ok=True)
        encoded = msgspec.json.encode(options).decode()
        command = [sys.executable, *STRICT, "-m", "tests.faults.daemon_process", encoded]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stderr=log, stdout=log)

    @property
    def directory(self) -> Path:
        return Path(self._options.directory)

    @property
    def options(self) -> ProcessOptions:
        return self._options

    def recorded(self, name: str) -> RecordedState:
        return RecordedState(self.directory / f"{name}.db")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def ready(self) -> Path:
        return self.directory / f"{self._options.holder} is ready"

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def freeze(self, on: bool) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if on else signal.SIGCONT)

    async def stop(self) -> None:
        """Gracefully; it must be able to."""
        assert self._process is not None
        await eventually(self.ready().exists, "a process that listens to signals", SETTLE_S)
        self._process.terminate()
        code = await asyncio.to_thread(self._process.wait, 60)
        assert code == 0, f"the daemon ended with {code}: {self.tail()}"

    def require_alive(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, f"the daemon ended by itself: {self.tail()}"

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-_TAIL_CHARACTERS:]

    async def report(self) -> str:
        """Returns the end of its log; if it runs, with the state of its components and the stacks of its threads."""
        if self._process is not None and self._process.poll() is None and self.ready().exists():
            self._process.send_signal(signal.SIGCONT)
            reported = self.tail().count(STATE_END)
            self._process.send_signal(signal.SIGUSR1)
            with suppress(AssertionError):
                await eventually(lambda: self.tail().count(STATE_END) > reported, "the daemon's state", 10)
            self._process.send_signal(signal.SIGUSR2)
            await asyncio.sleep(0.5)  # nothing tells when all stacks are written
        return f"---- {self._options.holder} ({self._options.group})\n{self.tail()}"


class Oracle:
    def __init__(
        self, url: str, stream_url: str, directory: Path, seed: str, troubles: dict[str, int], lease_s: float = 2.0
    ) -> None:
        self.url = url
        self.directory = directory
        self.random = random.Random(seed)
        self.seed = seed
        self.process = Process(ProcessOptions(url, stream_url, str(directory), seed, lease_s=lease_s), seed)
        self.processes = [self.process]  # with followers, if there are any
        self.troubles = troubles  # name -> weight
        self.certain: list[str] = []  # those of every run, however short
        self.server: EmbeddedPostgres | None = None
        self.proxy: TcpProxy | None = None
        self.struck: Counter[str] = Counter()
        self.sequence: list[str] = []

    async def run(self, seconds: float, *, writers: int = 3, pause_s: float = 0.01, rest_s: float = 2.0) -> None:
        over = asyncio.Event()
        people = [self.writer(f"{self.seed} writer {number}") for number in range(writers)]
        writing = [asyncio.create_task(person.run(over, pause_s)) for person in people]
        for process in self.processes:
            process.start()
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end or self.certain:
                await asyncio.sleep(self.random.uniform(0.2, rest_s))
                name = self._next_trouble()
                self.sequence.append(name)
                await self._strike(name)
                self.struck[name] += 1
                self.require_no_violation()
            over.set()
            await asyncio.gather(*writing)
            for process in self.processes:
                (process.directory / "calm").touch()
            await self.require_agreement()
            await self.require_deliveries()
            for process in self.processes:
                process.require_alive()
                await process.stop()
            for process in self.processes:
                process.start()
            await self.require_agreement()
            for process in self.processes:
                await process.stop()
        except Exception:
            print(f"seed {self.seed!r}, troubles so far: {self.sequence}")  # noqa: T201
            for process in self.processes:
                print(await process.report())  # noqa: T201
            await self.report()
            raise
        finally:
            over.set()
            await asyncio.gather(*writing, return_exceptions=True)
            for process in self.processes:
                process.kill()
        print(f"writes {sum(p.done for p in people)}, troubles {dict(self.struck)}")  # noqa: T201
        for process in self.processes:
            print(f"{process.options.group}: {self._seen(process)}")  # noqa: T201

    def writer(self, seed: str) -> Writer:
        return SqlWriter(self.url, seed)

    async def report(self) -> None:
        """Prints what else helps to find the cause of a failure."""

    async def require_deliveries(self) -> None:
        """Requires that after the last fault events arrive again, not only refreshes."""
        before = [self._delivered(process) for process in self.processes]
        over = asyncio.Event()
        writing = asyncio.create_task(self.writer(f"{self.seed} calm").run(over, 0.05))

        def arrived() -> bool:
            return all(self._delivered(process) > count for process, count in zip(self.processes, before, strict=True))

        try:
            await eventually(arrived, f"seed {self.seed!r}: events in every daemon", SETTLE_S)
        finally:
            over.set()
            await writing
        await self.require_agreement()

    def _delivered(self, process: Process) -> int:
        return process.recorded("whole").counts().get("events", 0)

    def _seen(self, process: Process) -> dict[str, dict[str, int]]:
        return {
            name: {what: number for what, number in process.recorded(name).counts().items() if "calls" not in what}
            for name in COMPONENTS
        }

    def require_no_violation(self) -> None:
        for process in self.processes:
            for name in COMPONENTS:
                if (process.directory / f"{name}.db").exists():
                    violations = process.recorded(name).violations()
                    assert not violations, (
                        f"seed {self.seed!r}: {name} of {process.options.group} saw {len(violations)}: "
                        + "\n".join(violations[:5])
                    )

    async def require_agreement(self) -> None:
        """Waits until every component's rows equal the database's. No component has recorded a violation then."""
        store = await open_store(self.url)
        try:
            for name, (tables, _, _) in COMPONENTS.items():
                wanted = await contents(store, sorted(tables))
                for process in self.processes:
                    await eventually(
                        partial(self._agrees, process, name, wanted),
                        f"seed {self.seed!r}: the rows of {name} of {process.options.group} as in the database",
                        SETTLE_S,
                    )
        finally:
            await store.close()
        self.require_no_violation()

    async def _agrees(self, process: Process, name: str, wanted: set[tuple[str, str, str]]) -> bool:
        await asyncio.sleep(0.1)
        process.require_alive()
        return (process.directory / f"{name}.db").exists() and process.recorded(name).rows() == wanted

    def _next_trouble(self) -> str:
        if self.certain and self.random.random() < 0.5:
            return self.certain.pop(self.random.randrange(len(self.certain)))
        (name,) = self.random.choices(list(self.troubles), list(self.troubles.values()))
        return name

    async def _strike(self, name: str) -> None:
        for process in self.processes:
            process.require_alive()
        await self.strikes()[name]()

    def strikes(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            "kill": self._kill, "stop": self._stop, "freeze": self._freeze, "server": self._restart_server,
            "cut": self._cut, "deaf": self._deafen, "slot": self._drop_slot, "rest": self._rest,
        }  # fmt: skip

    async def _rest(self) -> None:
        await asyncio.sleep(1.0)

    async def _kill(self) -> None:
        process = self.random.choice(self.processes)
        process.kill()
        process.start()

    async def _stop(self) -> None:
        process = self.random.choice(self.processes)
        await process.stop()
        process.start()

    async def _freeze(self) -> None:
        """Shorter or longer than the lease."""
        process = self.random.choice(self.processes)
        process.freeze(True)
        await asyncio.sleep(self.random.choice([0.3, 3.0]))
        process.freeze(False)

    async def _restart_server(self) -> None:
        assert self.server is not None
        await asyncio.to_thread(self.server.kill)
        await asyncio.sleep(self.random.choice([0.0, 0.5]))
        await asyncio.to_thread(self.server.start)

    async def _cut(self) -> None:
        assert self.proxy is not None
        self.proxy.cut()

    async def _deafen(self) -> None:
        assert self.proxy is not None
        self.proxy.go_deaf()
        await asyncio.sleep(self.random.choice([0.3, 2.5]))
        self.proxy.listen()

    async def _drop_slot(self) -> None:
        await asyncio.to_thread(drop_slot, self.url, "oracle")


def drop_slot(url: str, slot: str) -> None:
    """Works also while a connection reads it."""
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(200):
            try:
                connection.execute(
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
                    "WHERE slot_name = %s AND active_pid IS NOT NULL",
                    [slot],
                )
                connection.execute(
                    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", [slot]
                )
                return
            except psycopg.errors.ObjectInUse:
                time.sleep(0.01)
    raise AssertionError(f"slot {slot} could not be dropped")


async def contents(store: MetadataStore, tables: Sequence[str]) -> set[tuple[str, str, str]]:
    found = set()
    async with store.consistent_read() as snapshot:
        for table in tables:
            async for page in snapshot.rows(KINDS[table]):
                found |= {(table, *comparable(row)) for row in page}
    return found
