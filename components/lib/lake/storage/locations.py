"""The locations of tables and files. `astha.locations` has the one form of URI that they share."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from uuid import uuid4

from astha.lake_locations import STREAMS
from astha.locations import BadLocation, Location, Scheme, canonical, join, parse, parse_file
from astha.settings.lake import LakeSettings

__all__ = [
    "BadLocation", "Location", "Scheme", "canonical", "join", "parse", "parse_file",
    "directory", "file_location", "namespace_directory", "slug", "streams_location", "table_location",
]  # fmt: skip

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_WITH_DIGEST = re.compile(r"-[0-9a-f]{8}$")
_LONGEST_PART = 64  # of a directory's name: far below any file system's limit


def streams_location(lake: LakeSettings) -> str:
    """Returns the location of the objects of streams."""
    return canonical(lake.streams or join(canonical(lake.warehouse), STREAMS))


def table_location(warehouse: str, database: str, name: str) -> str:
    """Returns the default location of a new table. Names may contain anything; no two tables share a location."""
    return join(canonical(warehouse), namespace_directory(database), _distinct(name))


def namespace_directory(database: str) -> str:
    """Returns the name of the directory in the warehouse where the tables of a database go by default."""
    return _distinct(database)


def file_location(table: str, partition_path: str, extension: str, now_ms: int) -> str:
    """Returns a unique location for a new data file; names sort by creation time.

    The directory only serves human readers. It contains no ``=``, which Arrow would read as a partition column.
    """
    when = datetime.fromtimestamp(now_ms / 1000, UTC)
    stamp = f"{when:%Y%m%dT%H%M%S}{when.microsecond // 1000:03d}"
    return join(table, "data", directory(partition_path), f"{stamp}-{uuid4().hex}{extension}")


def directory(partition_path: str) -> str:
    return "/".join(slug(part) for part in partition_path.split("/") if part)


def slug(text: str) -> str:
    """Returns the name without characters that a reader could interpret. Two names may have the same slug."""
    return _UNSAFE.sub("-", text).strip("-.")[:_LONGEST_PART] or "-"


def _distinct(name: str) -> str:
    """Appends a digest to a name that its slug does not preserve, and to one that already looks like that."""
    found = slug(name)
    if found == name and not _WITH_DIGEST.search(name):
        return found
    return f"{found}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
