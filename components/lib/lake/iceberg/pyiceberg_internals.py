"""Everything that uses private parts of PyIceberg: underscored names, and overrides of classes not made for it.

PyIceberg is pinned. The canaries in `test_pyiceberg_internals.py` fail on any other version, and name each part below
whose source has changed.
"""

from __future__ import annotations

import io
import json
from abc import abstractmethod
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from pyarrow.fs import FileSystem
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import AvroFile, AvroOutputFile
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import construct_writer, resolve_reader
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.sql import IcebergTables as CatalogRow
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    _inherit_from_manifest,
)
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    TableRequirement,
    TableUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
    _update_table_metadata_log,
)
from pyiceberg.typedef import Identifier, Record, StructProtocol
from pyiceberg.types import IcebergType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion
from sqlalchemy import Engine, select, update
from sqlalchemy.orm import Session

from components.lib.varint import encode_signed

D = TypeVar("D", bound=StructProtocol)

record_values: Callable[[Record], list[Any]] = attrgetter("_data")
"""All values of a record at once; its public interface returns one at a time."""


def value_encoder(kind: IcebergType) -> Callable[[Any], bytes]:
    """Returns PyIceberg's own Avro encoder of one value."""
    writer = construct_writer(kind)

    def encode(value: Any) -> bytes:
        written = io.BytesIO()
        writer.write(BinaryEncoder(written), value)
        return written.getvalue()

    return encode


class EncodedAvroFile(AvroOutputFile[D]):
    """An Avro file whose blocks a subclass encodes."""

    def write_encoded_block(self, count: int, content: bytes) -> None:
        self.write_compressed_block(count, self.compressed(content))

    def compressed(self, content: bytes) -> bytes:
        codec = self.compression_codec()
        return content if codec is None else codec.compress(content)[0]

    def write_compressed_block(self, count: int, content: bytes) -> None:
        self.encoder.write(b"".join((encode_signed(count), encode_signed(len(content)), content, self.sync_bytes)))


class _ManifestEntries(AvroFile[ManifestEntry]):
    """Keeps the reader for each schema: deriving it takes longer than reading a manifest of one file."""

    __slots__ = ()

    def __enter__(self) -> _ManifestEntries:
        with self.input_file.open() as file:
            self.decoder = new_decoder(file.read())
        self.header = self._read_header()
        self.reader = _entry_reader(self.header.meta["avro.schema"])
        return self


@lru_cache(maxsize=256)
def _entry_reader(avro_schema: str) -> Reader:
    return resolve_reader(
        AvroSchemaConversion().avro_to_iceberg(json.loads(avro_schema)),
        MANIFEST_ENTRY_SCHEMAS[3],
        {-1: ManifestEntry, 2: DataFile},
        {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    )


class ListedManifest(Protocol):
    """What the entries of a manifest inherit from the manifest list."""

    @property
    def manifest_path(self) -> str: ...

    @property
    def partition_spec_id(self) -> int: ...

    @property
    def sequence_number(self) -> int: ...

    @property
    def added_snapshot_id(self) -> int | None: ...


def live_entries(io: FileIO, manifest: ListedManifest) -> list[ManifestEntry]:
    """`ManifestFile.fetch_manifest_entry` with the fields of format version 3, which delete files of version 2 may have
    as well: PyIceberg reads those of version 2 only. The common fields are at the same places.
    """
    with _ManifestEntries(io.new_input(manifest.manifest_path)) as entries:
        return [
            _inherit_from_manifest(entry, manifest)  # type: ignore[arg-type]  # it uses these properties only
            for entry in entries
            if entry.status != ManifestEntryStatus.DELETED
        ]


class DeleteFileFields(NamedTuple):
    """The fields of a `DataFile` that PyIceberg has no property for."""

    referenced_data_file: str | None
    content_offset: int | None
    content_size: int | None


def delete_file_fields(file: DataFile) -> DeleteFileFields:
    """Of a file that `live_entries` has read."""
    return DeleteFileFields(*record_values(file)[17:20])


class CustomManifestWriter(ManifestWriterV2):
    """PyIceberg's manifest writer, which counts and summarizes entries, over another kind of Avro file."""

    entry_file: ClassVar[type[AvroOutputFile[ManifestEntry]]]

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        return self.entry_file(
            output_file=self._output_file,
            file_schema=self._with_partition(self.version),
            record_schema=self._with_partition(DEFAULT_READ_VERSION),
            schema_name="manifest_entry",
            metadata=self._meta,
        )


class CustomDeleteManifestWriter(CustomManifestWriter):
    """The same for manifests of delete files, which PyIceberg reads and does not write."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class CustomLocalFileIO(PyArrowFileIO):
    """PyIceberg's Arrow FileIO with another file system for local paths."""

    @abstractmethod
    def local_file_system(self) -> FileSystem: ...

    def _initialize_local_fs(self) -> FileSystem:
        return self.local_file_system()


class EngineSqlCatalog(SqlCatalog):
    """PyIceberg's SQL catalog over an engine of the caller's, instead of a URL among its properties."""

    def __init__(self, name: str, engine: Engine, **properties: str) -> None:
        MetastoreCatalog.__init__(self, name, **{**properties, "init_catalog_tables": "false"})
        self.engine = engine
        self._init_catalog()

    def pointers(self) -> list[tuple[tuple[str, ...], str]]:
        """Returns the identifier and the metadata file of every table, in one query."""
        statement = select(CatalogRow.table_namespace, CatalogRow.table_name, CatalogRow.metadata_location).where(
            CatalogRow.catalog_name == self.name
        )
        with Session(self.engine) as session:
            return [
                ((*Catalog.identifier_to_tuple(namespace), name), location)
                for namespace, name, location in session.execute(statement)
                if location is not None
            ]

    def next_metadata_location(self, table: Table, metadata: TableMetadata) -> str:
        version = self._parse_metadata_version(table.metadata_location) + 1
        provider = load_location_provider(metadata.location, metadata.properties)
        return provider.new_table_metadata_file_location(version)

    def swap_metadata_location(self, table: Table, location: str) -> bool:
        """Returns False, and changes nothing, if the catalog's pointer is no longer the one that `table` has."""
        *namespace, name = table.name()
        statement = (
            update(CatalogRow)
            .where(
                CatalogRow.catalog_name == self.name,
                CatalogRow.table_namespace == Catalog.namespace_to_string(tuple(namespace)),
                CatalogRow.table_name == name,
                CatalogRow.metadata_location == table.metadata_location,
            )
            .values(metadata_location=location, previous_metadata_location=table.metadata_location)
        )
        with Session(self.engine) as session:
            if session.execute(statement).rowcount < 1:  # type: ignore[attr-defined]  # an UPDATE has one
                return False
            session.commit()
        return True


class PointerCatalog(MetastoreCatalog):
    """A catalog over pointers that a subclass keeps: what `MetastoreCatalog` leaves to do with metadata files."""

    def next_metadata_location(self, table: Table, metadata: TableMetadata) -> str:
        version = self._parse_metadata_version(table.metadata_location) + 1
        provider = load_location_provider(metadata.location, metadata.properties)
        return provider.new_table_metadata_file_location(version)

    def read_table(self, identifier: Identifier, location: str) -> Table:
        file = load_file_io(self.properties, location).new_input(location)
        metadata = FromInputFile.table_metadata(file)
        return Table(identifier, metadata, location, self._load_file_io(metadata.properties, location), self)

    def write_new_table(
        self, identifier: Identifier, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> tuple[TableMetadata, str]:
        """Writes the metadata file of a table that is to be created."""
        staged = self._update_and_stage_table(None, identifier, requirements, updates)
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        return staged.metadata, staged.metadata_location


def commit(table: Table, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...]) -> None:
    """Commits through `Table`, which also removes metadata files that are too old."""
    table._do_commit(updates, requirements)


def updated_metadata(table: Table, updates: tuple[TableUpdate, ...]) -> TableMetadata:
    """PyIceberg's `update_table_metadata` without its deep copy: metadata is never changed in place.

    Returns the table's own metadata object if the updates change nothing.
    """
    context = _TableMetadataUpdateContext()
    metadata = table.metadata
    for change in updates:
        metadata = _apply_table_update(change, metadata, context)
    if not context.has_changes():
        return table.metadata
    metadata.spec().check_compatible(metadata.schema())
    metadata.sort_order().check_compatible(metadata.schema())
    return _update_table_metadata_log(metadata, table.metadata_location, table.metadata.last_updated_ms)
