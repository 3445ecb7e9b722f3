"""A daemon with real components and some contents, for a browser to look at."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from registry.connect import open_store
from registry.contract import MetadataStore
from registry.embedded_postgres import free_port
from registry.inputs import OffsetDraft, SnapshotDraft
from tests.integration.astha.processes import TOKEN, Astha, Daemon, add_topic, prepared
from tests.samples import TABLE, decision, segment

ORDERS = "shop.orders"
HOSTILE = "<img src=x onerror=alert(1)>"
"""A name that is harmful if a page takes it for HTML."""

_SUBSCRIPTIONS = """
components:
  iceberg_updater:
    tables: [table_metadata, table_files, table_delete_files, iceberg_commits]
  snapshotter:
    tables: [table_metadata, table_files, table_snapshots]
  compactor:
    use: tests.e2e.local_compactor:create
    tables: [table_files, table_stats, table_delete_files]
    settings: {stale_after_s: 3600}
  audit:
    use: acme_audit:create
    tables: [topics]
    settings: {path: %s/audit.log}
"""


class Site:
    def __init__(self, astha: Astha) -> None:
        self.astha = astha
        self.daemon: Daemon | None = None
        self.port = free_port()
        self.astha.environment["ASTHA_SERVER__PORT"] = str(self.port)
        self.astha.environment["ASTHA_LAKE__WAREHOUSE"] = str(astha.directory / "warehouse")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Daemon:
        self.daemon = self.astha.run()
        self.daemon.until_ready()
        return self.daemon

    def stop(self) -> None:
        if self.daemon is not None:
            self.daemon.close()

    @contextmanager
    def standby(self) -> Iterator[str]:
        """A second daemon of the group. Yields its address."""
        daemon = self.astha.run(environment={"ASTHA_SERVER__PORT": "0"})
        try:
            daemon.logged("another daemon leads")
            yield daemon.url
        finally:
            daemon.close()

    def command(self, *arguments: str) -> None:
        done = self.astha(*arguments)
        assert done.returncode == 0, done.stderr

    def write(self, work: Callable[[MetadataStore], Awaitable[object]]) -> None:
        async def run() -> None:
            store = await open_store(self.astha.url)
            try:
                await work(store)
            finally:
                await store.close()

        with ThreadPoolExecutor(1) as thread:  # Playwright's loop runs in this one
            thread.submit(asyncio.run, run()).result()

    def add_topic(self, name: str) -> None:
        add_topic(self.astha.url, name)

    @contextmanager
    def failing_audit(self) -> Iterator[None]:
        """Deliveries to `audit` fail: a directory has the place of its file."""
        path = self.astha.directory / "audit.log"
        aside = path.rename(path.with_suffix(".aside"))
        path.mkdir()
        try:
            yield
        finally:
            path.rmdir()
            aside.rename(path)

    def insert(self, files: int) -> None:
        """Inserts as many small files."""
        paths = []
        for number in range(files):
            path = self.astha.directory / f"orders-{number}.json"
            rows = ({"id": number * 100 + row, "item": f"item {row}"} for row in range(100))
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            paths.append(str(path))
        self.command("insert", ORDERS, *paths, "--sync")


async def fill(store: MetadataStore) -> None:
    """Topics with lag, and a table with a hostile name, decisions and a snapshot that failed."""
    for name, partitions in (("clicks", 3), ("payments", 2)):
        await store.create_topic(name, partitions)
        await store.add_segments([segment(base, topic=name, partition=0) for base in range(0, 100, 10)])
    await store.ensure_consumer_group("billing")
    await store.commit_offsets("billing", [OffsetDraft("clicks", 0, 40)])
    hostile = await store.create_table("evil", HOSTILE, "/no/such/lake", TABLE)
    draft = SnapshotDraft(timestamp=1_750_000_000_000, trigger="manual", status="failed", reason=HOSTILE)
    await store.record_snapshot(hostile.id, draft)
    await store.record_compactions(
        [decision(f"day={day}", table_id=hostile.id, status="declined", reason=HOSTILE) for day in range(60)]
    )


@contextmanager
def site(tmp_path: Path) -> Iterator[Site]:
    with prepared(f"sqlite:///{tmp_path}/registry.db", tmp_path) as astha:
        (tmp_path / "subscriptions.yaml").write_text(_SUBSCRIPTIONS % tmp_path)
        found = Site(astha)
        found.command("registry", "migrate")
        found.command(
            "tables", "create", ORDERS, "--column", "id:long", "--column", "item:string",
            "--property", "compaction.enabled=false",
        )  # fmt: skip
        found.write(fill)
        found.insert(6)
        found.start()
        yield found


__all__ = ["HOSTILE", "ORDERS", "TOKEN", "Site", "site"]
