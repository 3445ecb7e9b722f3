"""The Iceberg catalog of a registry in DynamoDB: the same rows as `astha catalog` serves, by the store's own verbs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from pyiceberg.catalog import Catalog, PropertiesUpdateSummary
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import AssertCreate, TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties

from components.lib.lake.iceberg.catalog import MetadataCommits
from components.lib.lake.iceberg.errors import CatalogUnavailable
from components.lib.lake.iceberg.pyiceberg_internals import PointerCatalog
from registry.errors import AlreadyExists, Conflict, NotFound, RegistryError
from registry.stores.dynamodb.opening import make_store

T = TypeVar("T")
Name = str | Identifier


class DynamoCatalog(PointerCatalog):
    """Blocking, callable from any thread: its requests run in a thread with an event loop of its own."""

    def __init__(self, name: str, registry_url: str, **properties: str) -> None:
        super().__init__(name, **properties)
        self._metadata = MetadataCommits()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="Iceberg catalog", daemon=True)
        self._thread.start()
        self._store = make_store(registry_url)

    def close(self) -> None:
        if not self._loop.is_closed():
            self._wait(self._store.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        """Raises `CatalogUnavailable` for errors that are not PyIceberg's."""
        if self._loop.is_closed():
            call.close()
            raise CatalogUnavailable("the catalog is closed")
        try:
            return asyncio.run_coroutine_threadsafe(call, self._loop).result()
        except (NotFound, AlreadyExists, Conflict):
            raise
        except RegistryError as error:
            raise CatalogUnavailable(str(error)) from error

    # -- tables ------------------------------------------------------------------------------------------

    def pointers(self) -> list[tuple[tuple[str, ...], str]]:
        """Returns the identifier and the metadata file of every table."""
        return [
            ((*Catalog.identifier_to_tuple(row.table_namespace), row.table_name), row.metadata_location)
            for row in self._wait(self._store.list_pointers(self.name))
            if row.metadata_location is not None and row.iceberg_type in (None, "TABLE")
        ]

    def load_table(self, identifier: Name) -> Table:
        namespace, name = _parts(identifier)
        location = self._wait(self._store.get_pointer(self.name, namespace, name))
        if location is None:
            raise NoSuchTableError(f"Table does not exist: {namespace}.{name}")
        return self.read_table(Catalog.identifier_to_tuple(identifier), location)

    def create_table(self, identifier: Name, *arguments: Any, **options: Any) -> Table:
        with self.create_table_transaction(identifier, *arguments, **options):
            pass
        return self.load_table(identifier)

    def register_table(self, identifier: Name, metadata_location: str, overwrite: bool = False) -> Table:
        namespace, name = _parts(identifier)
        expected = self._wait(self._store.get_pointer(self.name, namespace, name)) if overwrite else None
        self._move(namespace, name, expected, metadata_location)
        return self.load_table(identifier)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        if not any(isinstance(requirement, AssertCreate) for requirement in requirements):
            return self._metadata.commit(self, table, requirements, updates)
        namespace, name = _parts(table.name())
        if not self.namespace_exists(namespace):
            raise NoSuchNamespaceError(f"Namespace does not exist: {namespace}")
        if self._wait(self._store.get_pointer(self.name, namespace, name)) is not None:
            raise TableAlreadyExistsError(f"Table {namespace}.{name} already exists")
        metadata, location = self.write_new_table(table.name(), requirements, updates)
        self._move(namespace, name, None, location)
        return CommitTableResponse(metadata=metadata, metadata_location=location)

    def swap_metadata_location(self, table: Table, location: str) -> bool:
        namespace, name = _parts(table.name())
        return self._wait(self._store.move_pointer(self.name, namespace, name, table.metadata_location, location))

    def _move(self, namespace: str, name: str, expected: str | None, location: str) -> None:
        if not self._wait(self._store.move_pointer(self.name, namespace, name, expected, location)):
            raise TableAlreadyExistsError(f"Table {namespace}.{name} already exists")

    def drop_table(self, identifier: Name) -> None:
        namespace, name = _parts(identifier)
        try:
            self._wait(self._store.remove_pointer(self.name, namespace, name))
        except NotFound as error:
            raise NoSuchTableError(f"Table does not exist: {namespace}.{name}") from error

    def rename_table(self, from_identifier: Name, to_identifier: Name) -> Table:
        former, new = _parts(from_identifier), _parts(to_identifier)
        if not self.namespace_exists(new[0]):
            raise NoSuchNamespaceError(f"Namespace does not exist: {new[0]}")
        try:
            self._wait(self._store.rename_pointer(self.name, *former, *new))
        except NotFound as error:
            raise NoSuchTableError(f"Table does not exist: {'.'.join(former)}") from error
        except AlreadyExists as error:
            raise TableAlreadyExistsError(f"Table {'.'.join(new)} already exists") from error
        return self.load_table(to_identifier)

    def list_tables(self, namespace: Name) -> list[Identifier]:
        wanted = Catalog.identifier_to_tuple(namespace)
        if wanted and not self.namespace_exists(wanted):
            raise NoSuchNamespaceError(f"Namespace does not exist: {'.'.join(wanted)}")
        return [identifier for identifier, _ in self.pointers() if identifier[:-1] == wanted]

    # -- namespaces --------------------------------------------------------------------------------------

    def _namespaces(self) -> list[Identifier]:
        found = self._wait(self._store.list_catalog_namespaces(self.name))
        return [Catalog.identifier_to_tuple(namespace) for namespace in found]

    def namespace_exists(self, namespace: Name) -> bool:
        wanted = Catalog.identifier_to_tuple(namespace)
        return any(found[: len(wanted)] == wanted for found in self._namespaces())

    def list_namespaces(self, namespace: Name = ()) -> list[Identifier]:
        parent = Catalog.identifier_to_tuple(namespace)
        if parent and not self.namespace_exists(parent):
            raise NoSuchNamespaceError(f"Namespace does not exist: {'.'.join(parent)}")
        depth = len(parent)
        below = {found[: depth + 1] for found in self._namespaces() if len(found) > depth and found[:depth] == parent}
        return sorted(below)

    def create_namespace(self, namespace: Name, properties: Properties = EMPTY_DICT) -> None:
        name = Catalog.namespace_to_string(namespace)
        try:
            self._wait(self._store.create_catalog_namespace(self.name, name, properties))
        except AlreadyExists as error:
            raise NamespaceAlreadyExistsError(f"Namespace {name} already exists") from error

    def drop_namespace(self, namespace: Name) -> None:
        name = Catalog.namespace_to_string(namespace)
        try:
            self._wait(self._store.drop_catalog_namespace(self.name, name))
        except NotFound as error:
            raise NoSuchNamespaceError(f"Namespace does not exist: {name}") from error
        except Conflict as error:
            raise NamespaceNotEmptyError(str(error)) from error

    def load_namespace_properties(self, namespace: Name) -> Properties:
        name = Catalog.namespace_to_string(namespace)
        if not self.namespace_exists(namespace):
            raise NoSuchNamespaceError(f"Namespace does not exist: {name}")
        return self._wait(self._store.get_namespace_properties(self.name, name))

    def update_namespace_properties(
        self, namespace: Name, removals: set[str] | None = None, updates: Properties = EMPTY_DICT
    ) -> PropertiesUpdateSummary:
        name = Catalog.namespace_to_string(namespace)
        change = self._store.update_catalog_namespace(self.name, name, set=updates, remove=sorted(removals or ()))
        try:
            done = self._wait(change)
        except NotFound as error:
            raise NoSuchNamespaceError(f"Namespace does not exist: {name}") from error
        return PropertiesUpdateSummary(removed=done.removed, updated=done.updated, missing=done.missing)

    # -- views: none -------------------------------------------------------------------------------------

    def list_views(self, namespace: Name) -> list[Identifier]:
        return []

    def view_exists(self, identifier: Name) -> bool:
        return False

    def load_view(self, identifier: Name) -> Any:
        raise NotImplementedError

    def drop_view(self, identifier: Name) -> None:
        raise NotImplementedError

    def register_view(self, identifier: Name, metadata_location: str) -> Any:
        raise NotImplementedError


def _parts(identifier: Name) -> tuple[str, str]:
    """Returns namespace and name."""
    return Catalog.namespace_to_string(Catalog.namespace_from(identifier)), Catalog.table_name_from(identifier)
