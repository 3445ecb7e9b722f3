"""The name and the bytes of a new metadata file, as Iceberg's own library chooses them."""

from __future__ import annotations

import gzip
import re
from uuid import uuid4

import msgspec

from components.lib.lake.engine_commits.errors import InvalidCommit
from components.lib.lake.engine_commits.iceberg_metadata import IcebergMetadata, MetadataLogEntry
from components.lib.lake.storage.locations import BadLocation, canonical
from components.lib.lake.storage.table_places import own_files

DIRECTORY = "write.metadata.path"
COMPRESSION = "write.metadata.compression-codec"

_VERSION = re.compile(r"/v?(\d+)(?:-[^/]*)?(?:\.gz)?\.metadata\.json(?:\.gz)?$")
_GZIP_LEVEL = 1
"""The file is written while the client waits; higher levels take several times as long for a tenth of the bytes."""


class MetadataFile(msgspec.Struct, frozen=True):
    """`content` is what is stored, `json` what clients get."""

    location: str
    content: bytes
    json: bytes


def metadata_file(metadata: IcebergMetadata, previous: str | None) -> MetadataFile:
    """Returns the file that follows the one at `previous`. Raises `InvalidCommit` for properties that can't be met."""
    codec = metadata.properties.get(COMPRESSION, "none").lower()
    if codec not in ("none", "gzip"):
        raise InvalidCommit(f"{COMPRESSION} = {codec!r}: write none or gzip")
    name = f"{next_version(previous):05d}-{uuid4()}{'.gz' if codec == 'gzip' else ''}.metadata.json"
    json = metadata.encode()
    content = gzip.compress(json, _GZIP_LEVEL, mtime=0) if codec == "gzip" else json
    return MetadataFile(f"{metadata_directory(metadata)}/{name}", content, json)


def metadata_directory(metadata: IcebergMetadata) -> str:
    """Returns the canonical location of the table's metadata files."""
    chosen = metadata.properties.get(DIRECTORY)
    try:
        return canonical(chosen) if chosen else f"{canonical(metadata.location)}/metadata"
    except BadLocation as error:
        raise InvalidCommit(str(error)) from error


def own_log(metadata: IcebergMetadata) -> list[MetadataLogEntry]:
    """Returns the log without files that are not the table's own: a file that leaves the log may be deleted. Blocks."""
    own = set(own_files((entry.metadata_file for entry in metadata.metadata_log), location=metadata.location))
    return [entry for entry in metadata.metadata_log if entry.metadata_file in own]


def next_version(location: str | None) -> int:
    """Returns 0 for a new table, and for one whose file has a name without a version."""
    found = None if location is None else _VERSION.search(location)
    return 0 if found is None else int(found[1]) + 1
