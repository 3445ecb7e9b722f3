"""Where rows are: the keys of their items, and of the pointer items that find them in other ways.

A row's item has a partition key made of its table and its `scope`, and a sort key made of its `sort` columns. A pointer
item leads from other columns to the row, as an index does. It is written in the row's own transaction, because
DynamoDB's global indexes are only eventually consistent. A unique pointer also enforces that no two rows agree in its
columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from registry import models
from registry.models import Row

MAX_PARTITION_KEY_BYTES = 2_048
MAX_SORT_KEY_BYTES = 1_024

_SEPARATOR, _ESCAPE = "\x01", "\x02"
_DIGEST_BYTES = 65

ItemKey: TypeAlias = tuple[str, str]
"""Partition key and sort key."""


class Pointer(msgspec.Struct, frozen=True):
    name: str
    scope: tuple[str, ...]
    sort: tuple[str, ...]
    unique: bool = False
    applies: Callable[[Row], bool] | None = None  # None: to every row

    def key(self, row: Row) -> ItemKey | None:
        if self.applies is not None and not self.applies(row):
            return None
        return (
            partition_key(f"{row.table}.{self.name}", *(getattr(row, column) for column in self.scope)),
            sort_key(*(getattr(row, column) for column in self.sort)),
        )


class Layout(msgspec.Struct, frozen=True):
    kind: type[Row]
    scope: tuple[str, ...]
    sort: tuple[str, ...]
    pointers: tuple[Pointer, ...] = ()

    def key(self, row: Row) -> ItemKey:
        return self.key_of(*(getattr(row, column) for column in (*self.scope, *self.sort)))

    def key_of(self, *values: str | int) -> ItemKey:
        """``values``: of the scope and the sort columns."""
        split = len(self.scope)
        return partition_key(self.kind.table, *values[:split]), sort_key(*values[split:])

    def pointer(self, name: str) -> Pointer:
        return next(pointer for pointer in self.pointers if pointer.name == name)


def partition_key(*values: str | int) -> str:
    return _shortened(_SEPARATOR.join(_part(value) for value in values), MAX_PARTITION_KEY_BYTES)


def sort_key(*values: str | int) -> str:
    """Keys sort as the values do; those of more than 958 bytes only by their first 958."""
    return _shortened("=" + _SEPARATOR.join(_part(value) for value in values), MAX_SORT_KEY_BYTES)


def sort_prefix(*values: str | int) -> str:
    """Returns the beginning of the sort keys whose first columns have these values."""
    return "=" + "".join(_part(value) + _SEPARATOR for value in values)


def _part(value: str | int) -> str:
    if isinstance(value, int):
        return f"{value:019d}"
    return value.replace(_ESCAPE, _ESCAPE + _ESCAPE).replace(_SEPARATOR, _ESCAPE + "\x03")


def _shortened(key: str, limit: int) -> str:
    encoded = key.encode()
    if len(encoded) <= limit:
        return key
    beginning = encoded[: limit - _DIGEST_BYTES - 1].decode(errors="ignore")
    return f"{beginning}{_ESCAPE}{hashlib.sha256(encoded).hexdigest()}"


def _set(column: str) -> Callable[[Row], bool]:
    return lambda row: getattr(row, column) is not None


def _live_tag(row: Row) -> bool:
    assert isinstance(row, models.TableSnapshot)  # noqa: S101  (the layout's own kind)
    return row.tag is not None and row.status in ("requested", "created")


def _status(*statuses: str) -> Callable[[Row], bool]:
    return lambda row: getattr(row, "status") in statuses  # noqa: B009  (not every row has one)


def _by_table(kind: type[Row], *pointers: Pointer) -> Layout:
    return Layout(kind, ("table_id",), ("id",), pointers)


_LAYOUTS = (
    Layout(models.Topic, (), ("name",)),
    Layout(models.Partition, ("topic",), ("partition_id",)),
    Layout(
        models.Segment,
        ("topic", "partition_id"),
        ("base_offset",),
        (Pointer("id", (), ("id",)), Pointer("object", ("s3_bucket", "s3_key"), ("byte_offset", "id"))),
    ),
    Layout(models.ConsumerGroup, (), ("group_id",)),
    Layout(models.ConsumerOffset, ("group_id",), ("topic", "partition_id")),
    Layout(models.Agent, (), ("agent_id",)),
    Layout(
        models.PartitionLease,
        ("topic",),
        ("partition_id",),
        (Pointer("agent", ("leader_agent_id",), ("topic", "partition_id"), applies=_set("leader_agent_id")),),
    ),
    Layout(models.LakeTable, (), ("id",), (Pointer("name", (), ("database", "name"), unique=True),)),
    Layout(models.TableMetadata, ("table_id",), ("schema_version",)),
    _by_table(models.TableFile, Pointer("path", ("table_id",), ("file_path",), unique=True)),
    _by_table(models.TableStats, Pointer("partition", ("table_id",), ("partition_path",), unique=True)),
    _by_table(
        models.TableSnapshot,
        Pointer("id", (), ("id",)),
        Pointer("tag", ("table_id",), ("tag",), unique=True, applies=_live_tag),
    ),
    _by_table(models.IcebergCommit),
    _by_table(models.TableDeleteFile, Pointer("path", ("table_id",), ("file_path", "content_offset"), unique=True)),
    Layout(models.LedgerEntry, (), ("group", "component")),
    Layout(models.DaemonLease, (), ("name",)),
    Layout(models.RunningDaemon, (), ("holder",)),
    Layout(models.SourceIdentity, (), ("name",)),
    Layout(models.UploadIntent, (), ("path",), (Pointer("age", (), ("created_at", "path")),)),
    Layout(models.FileAwaitingDeletion, (), ("id",), (Pointer("path", ("table_id",), ("file_path",), unique=True),)),
    Layout(
        models.Compaction,
        (),
        ("id",),
        (
            Pointer("operation", (), ("operation_id",), unique=True, applies=_set("operation_id")),
            Pointer("running", ("table_id",), ("partition_path",), unique=True, applies=_status("running")),
            Pointer(
                "standing", ("table_id",), ("partition_path",), unique=True, applies=_status("waiting", "declined")
            ),
            Pointer("time", (), ("decided_at", "id")),
        ),
    ),
    Layout(models.SegmentObject, (), ("s3_bucket", "s3_key")),
    Layout(models.ProducerSequence, ("topic",), ("partition_id", "producer_id")),
    Layout(
        models.GroupLease,
        ("group_id",),
        ("topic", "partition_id"),
        (Pointer("member", ("member_id",), ("group_id", "topic", "partition_id"), applies=_set("member_id")),),
    ),
    Layout(models.CatalogTable, (), ("catalog_name", "table_namespace", "table_name")),
    Layout(models.CatalogNamespace, (), ("catalog_name", "namespace", "property_key")),
    Layout(models.CatalogRequest, (), ("request_key",), (Pointer("age", (), ("created_at", "request_key")),)),
    Layout(models.LakeLocation, (), ("name",)),
    Layout(models.TableInsert, ("table_id",), ("insert_id",)),
)

LAYOUTS: dict[type[Row], Layout] = {layout.kind: layout for layout in _LAYOUTS}
KINDS: dict[str, type[Row]] = {kind.table: kind for kind in LAYOUTS}
