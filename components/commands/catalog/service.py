"""The catalog without HTTP: what another process that serves requests, such as a daemon, would open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from astha.clock import LoopClock
from astha.settings import Settings
from components.commands.catalog.commit_preparation import CommitPreparation
from components.commands.catalog.commits import Commits
from components.commands.catalog.guarded_io import open_io
from components.commands.catalog.locations import Locations
from components.commands.catalog.metadata_files import MetadataFiles
from components.commands.catalog.metadata_writer import MetadataWriter
from components.commands.catalog.namespaces import Namespaces
from components.commands.catalog.purge import Purge
from components.commands.catalog.table_changes import TableChanges
from components.commands.catalog.table_locks import TableLocks
from components.commands.catalog.tables import Tables
from components.lib.lake.storage.objects import Objects
from registry.contract import MetadataStore


class CatalogService(NamedTuple):
    store: MetadataStore
    namespaces: Namespaces
    tables: Tables
    changes: TableChanges


@asynccontextmanager
async def open_service(settings: Settings, store: MetadataStore, clock: LoopClock) -> AsyncIterator[CatalogService]:
    """The caller closes the store."""
    objects = Objects(settings.lake)
    files = MetadataFiles(objects, settings.catalog.metadata_cache_bytes)
    namespaces = Namespaces(store)
    locations = Locations.of(settings, store)
    io = open_io(settings.lake, locations.roots)
    tables = Tables(store, files, namespaces, Purge(store, files, io))
    writer = MetadataWriter(store, objects)
    changes = TableChanges(
        store,
        tables,
        namespaces,
        locations,
        CommitPreparation(store, files, locations, namespaces, io, clock),
        Commits(store, files, writer, clock),
        TableLocks(settings.catalog.concurrent_commits),
    )
    try:
        yield CatalogService(store, namespaces, tables, changes)
    finally:
        await writer.close()
