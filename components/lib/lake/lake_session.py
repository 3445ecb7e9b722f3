"""The registry, the Iceberg catalog and the storage, opened for one command and closed after it.

PyIceberg and obstore take a second to load: they are imported when a command uses them, not by `astha --help`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from astha.cli.exit_codes import Exit, Failure
from astha.cli.progress import progress
from astha.clock import LoopClock, SystemLoopClock
from astha.lake_locations import located
from astha.settings import Settings
from components.lib.lake.table_lookup import find_table
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.models import LakeTable

if TYPE_CHECKING:
    from components.lib.lake.iceberg import IcebergTables
    from components.lib.lake.storage.objects import Objects

T = TypeVar("T")


class LakeSession:
    """`store` is open; the catalog and the storage are opened when they are first used."""

    def __init__(self, settings: Settings, store: MetadataStore, clock: LoopClock) -> None:
        self.settings = settings
        self.store = store
        self.clock = clock
        self._tables: IcebergTables | None = None

    @cached_property
    def objects(self) -> Objects:
        from components.lib.lake.storage.objects import Objects

        return Objects(self.settings.lake)

    async def find_table(self, name: str) -> LakeTable:
        return await find_table(self.store, name)

    async def iceberg_tables(self, *, read_only: bool = False) -> IcebergTables:
        """``read_only`` writes nothing to the registry, not even its identity if it has none yet."""
        from components.lib.lake.iceberg import IcebergTables, open_catalog
        from components.lib.lake.iceberg.registry_identity import recorded_identity, registry_identity

        if self._tables is None:
            identity = await (recorded_identity if read_only else registry_identity)(self.store)
            url = self.settings.registry.url.get_secret_value()
            self._tables = IcebergTables(await asyncio.to_thread(open_catalog, url, self.settings.lake), identity)
        return self._tables

    async def close(self) -> None:
        """Closes the catalog; the store is its opener's."""
        if self._tables is not None:
            await asyncio.to_thread(self._tables.close)


@asynccontextmanager
async def open_lake(settings: Settings) -> AsyncIterator[LakeSession]:
    clock = SystemLoopClock()
    url = settings.registry.url.get_secret_value()
    store = await open_store(url, settings=settings.registry.store, clock=clock)
    try:
        session = LakeSession(await located(settings, store), store, clock)
        try:
            yield session
        finally:
            await session.close()
    finally:
        await store.close()


def run_with_lake(settings: Settings, work: Callable[[LakeSession], Awaitable[T]]) -> T:
    """Runs the work of a command. A catalog or a storage that is unavailable ends it with `Exit.UNAVAILABLE`."""

    async def run() -> T:
        async with open_lake(settings) as session:
            try:
                return await work(session)
            except Exception as error:
                raise _as_failure(error, settings) from error

    with progress("waiting for the registry", quiet=True):
        return asyncio.run(run())


def _as_failure(error: Exception, settings: Settings) -> Exception:
    from components.lib.lake.iceberg.errors import CatalogUnavailable
    from components.lib.lake.storage.objects import StorageUnavailable

    if isinstance(error, CatalogUnavailable | StorageUnavailable):
        return Failure(settings.redactor()(str(error)), Exit.UNAVAILABLE)
    return error
