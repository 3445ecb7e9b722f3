"""Which table of the registry each Iceberg table is, by the properties in its metadata file.

A metadata file never changes, so each is read once. Only its properties are decoded: the snapshots, which are most of
it, are not needed.
"""

from __future__ import annotations

import gzip
from collections.abc import Collection, Mapping

import msgspec
from pyiceberg.io import FileIO, load_file_io

from components.lib.lake.iceberg.stamp import REGISTRY, TABLE_ID


class _Metadata(msgspec.Struct, rename="kebab"):
    """Without a default: what a file must have to be a table's metadata."""

    format_version: int
    table_uuid: str
    properties: dict[str, str] = {}


class TableOwners:
    """`identity` is the registry's: tables of another one that has the same ids have no owner here. `properties` are
    those of the catalog, for access to storage.
    """

    def __init__(self, identity: str, properties: dict[str, str]) -> None:
        self._identity = identity
        self._properties = properties
        self._storages: dict[str, FileIO] = {}  # by scheme
        self._known: dict[str, int | None] = {}  # by metadata file

    def of(self, properties: Mapping[str, str]) -> int | None:
        """Returns the table's id in the registry, or None if it is no table of this registry."""
        owner = properties.get(TABLE_ID)
        return None if owner is None or properties.get(REGISTRY) != self._identity else int(owner)

    def read(self, location: str) -> int | None:
        """Returns the owner by a metadata file. Raises whatever its storage or its content raises."""
        if location not in self._known:
            with self._storage(location).new_input(location).open() as file:
                content = file.read()
            if ".gz." in location or location.endswith(".gz"):
                content = gzip.decompress(content)
            self._known[location] = self.of(msgspec.json.decode(content, type=_Metadata).properties)
        return self._known[location]

    def keep_only(self, locations: Collection[str]) -> None:
        """Forgets all other metadata files."""
        self._known = {location: self._known[location] for location in locations if location in self._known}

    def _storage(self, location: str) -> FileIO:
        scheme = location.partition(":")[0]
        if scheme not in self._storages:
            self._storages[scheme] = load_file_io(self._properties, location)
        return self._storages[scheme]
