from __future__ import annotations

from typing import Any

import msgspec
import pytest
from pyiceberg.table.metadata import TableMetadataUtil

from components.lib.lake.engine_commits import IcebergMetadata, InvalidCommit
from tests.unit.components.lib.lake.engine_commits.requests import (
    LOCATION,
    NOW,
    SCHEMA,
    applied,
    created,
    set_ref,
    with_snapshots,
)

STATISTICS = {
    "snapshot-id": 1,
    "statistics-path": "s",
    "file-size-in-bytes": 1,
    "file-footer-size-in-bytes": 1,
    "blob-metadata": [],
}


def full(version: str = "2") -> IcebergMetadata:
    spec = {"fields": [{"name": "ts_day", "transform": "day", "source-id": 2}]}
    order = {
        "order-id": 1,
        "fields": [{"transform": "identity", "source-id": 1, "direction": "asc", "null-order": "nulls-first"}],
    }
    table = created(**{"partition-spec": spec, "write-order": order, "properties": {"format-version": version}})
    if version == "3":
        return table
    return applied(
        with_snapshots(table, 1, 2),
        set_ref(1, "v1", "tag", **{"max-ref-age-ms": 5}),
        {"action": "set-statistics", "statistics": STATISTICS},
    )


@pytest.mark.parametrize("version", ["1", "2", "3"])
def test_what_is_written_is_read_again(version: str) -> None:
    table = full(version)
    assert IcebergMetadata.parse(table.encode()).encode() == table.encode()


@pytest.mark.parametrize("version", ["1", "2", "3"])
def test_pyiceberg_reads_the_same(version: str) -> None:
    table = full(version)
    theirs = TableMetadataUtil.parse_raw(table.encode().decode())
    assert theirs.format_version == int(version)
    assert str(theirs.table_uuid) == table.table_uuid
    assert theirs.current_snapshot_id == table.current_snapshot_id
    assert [snapshot.snapshot_id for snapshot in theirs.snapshots] == list(table.snapshots)
    assert {name: ref.snapshot_id for name, ref in theirs.refs.items()} == {
        name: ref.snapshot_id for name, ref in table.refs.items()
    }
    assert theirs.schema().find_field(3).name == "region"
    assert [str(field.transform) for field in theirs.spec().fields] == ["day"]
    assert theirs.sort_order().order_id == table.default_sort_order_id == 1
    assert dict(theirs.properties) == dict(table.properties)
    assert len(theirs.snapshot_log) == len(table.snapshot_log)
    assert len(theirs.metadata_log) == len(table.metadata_log)
    if version == "3":
        return  # PyIceberg can't write it
    again = IcebergMetadata.parse(theirs.model_dump_json(exclude_none=True).encode())
    assert (again.schema["fields"], again.refs) == (table.schema["fields"], table.refs)
    assert list(again.snapshot_log) == list(table.snapshot_log)


def test_snapshots_keep_the_json_of_their_engine() -> None:
    document = _document(full())
    document["snapshots"][0] |= {"key-id": "k", "new-field": [1, 2]}
    document["new-table-field"] = {"a": None}
    json = msgspec.json.encode(document)
    again = _document(IcebergMetadata.parse(json))
    assert again["snapshots"][0]["new-field"] == [1, 2]
    assert again["new-table-field"] == {"a": None}


def test_a_table_of_the_first_version_without_lists() -> None:
    document = {
        "format-version": 1,
        "table-uuid": "d20125c8-7284-442c-9aea-15fee620737c",
        "location": LOCATION,
        "last-updated-ms": NOW,
        "last-column-id": 3,
        "schema": SCHEMA,
        "partition-spec": [{"name": "region", "transform": "identity", "source-id": 3}],
        "current-snapshot-id": -1,
    }
    table = IcebergMetadata.parse(msgspec.json.encode(document))
    assert (table.current_schema_id, table.schema["schema-id"], table.default_spec_id) == (0, 0, 0)
    assert (table.spec["fields"][0]["field-id"], table.last_partition_id) == (1000, 1000)
    assert (table.sort_order["fields"], table.current_snapshot_id, dict(table.refs)) == ([], None, {})
    written = _document(table)
    assert (written["schema"], written["partition-spec"]) == (table.schema, table.spec["fields"])


def test_a_current_snapshot_without_references_is_main() -> None:
    document = _document(full())
    del document["refs"]
    assert IcebergMetadata.parse(msgspec.json.encode(document)).refs["main"].snapshot_id == 2


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"format-version": 2}'])
def test_what_is_no_metadata(content: bytes) -> None:
    with pytest.raises(InvalidCommit, match="not the metadata"):
        IcebergMetadata.parse(content)


def test_an_unknown_format_version() -> None:
    document = {**_document(full()), "format-version": 4}
    with pytest.raises(InvalidCommit, match="format version 4"):
        IcebergMetadata.parse(msgspec.json.encode(document))


def _document(metadata: IcebergMetadata) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(metadata.encode())
    return found
