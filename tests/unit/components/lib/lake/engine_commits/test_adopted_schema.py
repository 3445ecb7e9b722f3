from __future__ import annotations

from typing import Any

import pytest

from components.lib.lake.engine_commits import (
    IcebergMetadata,
    adopted_version,
    changed_properties,
    needs_version,
    versions_by_spec,
)
from components.lib.lake.schema.table_schema import SchemaProblem, TableSchema
from registry.inputs import TableDraft, validate
from registry.json_text import parse_json, to_json_text
from registry.models import TableMetadata
from tests.unit.components.lib.lake.engine_commits.requests import SCHEMA, applied, created, with_snapshots

DAY = {"name": "ts_day", "transform": "day", "source-id": 2}
ORDER = {"order-id": 1, "fields": [{"transform": "identity", "source-id": 1, "direction": "desc"}]}


def stored(draft: TableDraft, version: int = 1) -> TableMetadata:
    return TableMetadata(
        1, 7, version, draft.schema, draft.storage_engine, draft.engine_config, draft.format, draft.compression,
        draft.partition_by, draft.sort_by, draft.properties, 0, 0, 0,
    )  # fmt: skip


def with_column(**column: Any) -> IcebergMetadata:
    fields = [*SCHEMA["fields"], {"id": 4, "name": "x", "required": False, **column}]
    return created(schema={**SCHEMA, "fields": fields}, properties={"format-version": "3"})


def test_a_usual_table_can_be_written() -> None:
    table = created(**{"partition-spec": {"fields": [DAY]}, "write-order": ORDER, "properties": {"owner": "sales"}})
    draft = adopted_version(table)
    validate([draft])
    schema = TableSchema.of(stored(draft, 3))
    assert [(field.field_id, field.name) for field in schema.iceberg.fields] == [(1, "id"), (2, "ts"), (3, "region")]
    assert [(field.field_id, field.name) for field in schema.partition.fields] == [(1000, "ts_day")]
    assert [(field.source_id, field.direction.value) for field in schema.order.fields] == [(1, "desc")]
    assert (schema.version, schema.unwritable) == (3, None)
    assert parse_json(draft.properties) == {"owner": "sales", "write.parquet.compression-codec": "zstd"}


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (with_column(type="timestamp_ns"), "format version 3"),
        (with_column(type="variant"), "format version 3"),
        (with_column(type={"type": "struct", "fields": [{"id": 5, "name": "y", "type": "variant"}]}), "version 3"),
        (with_column(type="long", **{"initial-default": 4}), "format version 3"),
        (created(properties={"format-version": "1"}), "format version 1"),
        (created(**{"partition-spec": {"fields": [{**DAY, "transform": "zorder"}]}}), "unknown transform"),
        (created(**{"partition-spec": {"fields": [{**DAY, "transform": "void"}]}}), None),
    ],
)
def test_what_cannot_be_written_is_readable(table: IcebergMetadata, reason: str | None) -> None:
    row = stored(adopted_version(table))
    schema = TableSchema.read(row, table="shop.orders")
    assert {field.name for field in schema.iceberg.fields} >= {"id", "ts", "region"}
    if reason is None:
        assert schema.unwritable is None
        return
    assert schema.unwritable is not None
    assert reason in schema.unwritable
    with pytest.raises(SchemaProblem, match=reason):
        TableSchema.of(row, table="shop.orders")


def test_what_is_no_schema_is_not_readable() -> None:
    row = stored(TableDraft(schema=to_json_text({"type": "struct"})))
    with pytest.raises(SchemaProblem, match="not an Iceberg schema"):
        TableSchema.read(row)


def test_which_commits_need_a_version() -> None:
    base = with_snapshots(created(), 1)
    add_spec: list[dict[str, Any]] = [
        {"action": "add-spec", "spec": {"fields": [DAY]}},
        {"action": "set-default-spec", "spec-id": -1},
    ]
    add_order: list[dict[str, Any]] = [
        {"action": "add-sort-order", "sort-order": ORDER},
        {"action": "set-default-sort-order", "sort-order-id": -1},
    ]
    narrow: list[dict[str, Any]] = [
        {"action": "add-schema", "schema": {**SCHEMA, "fields": SCHEMA["fields"][:2]}},
        {"action": "set-current-schema", "schema-id": -1},
    ]
    upgrade = [{"action": "upgrade-format-version", "format-version": 3}]
    for updates in (add_spec, add_order, narrow, upgrade):
        assert needs_version(base, applied(base, *updates))
    assert needs_version(None, base)
    assert not needs_version(base, with_snapshots(base, 2))
    assert not needs_version(base, applied(base, add_spec[0], narrow[0]))
    assert not needs_version(base, applied(base, {"action": "set-properties", "updates": {"a": "b"}}))


def test_properties_of_the_registry_stay_and_follow_the_commit() -> None:
    registered = {"snapshot.every": "1d", "owner": "sales", "old": "1"}
    before = {"old": "1", "astha.files": "1", "write.x": "y"}
    after = {"astha.files": "2", "write.x": "y", "owner": "ops", "comment": "c"}
    changed = changed_properties(registered, before, after)
    assert changed == {"snapshot.every": "1d", "owner": "ops", "comment": "c"}
    previous = stored(TableDraft(schema=to_json_text(SCHEMA), properties=to_json_text(registered)))
    base = created()
    draft = adopted_version(applied(base, {"action": "set-properties", "updates": {"owner": "ops"}}), base, previous)
    assert parse_json(draft.properties) == {**registered, "owner": "ops"}


def test_the_newest_version_of_each_spec() -> None:
    base = created()
    evolved = applied(
        base, {"action": "add-spec", "spec": {"fields": [DAY]}}, {"action": "set-default-spec", "spec-id": -1}
    )
    rows = [stored(adopted_version(base), 1), stored(adopted_version(evolved), 3), stored(adopted_version(base), 2)]
    assert versions_by_spec(evolved, rows) == {0: 2, 1: 3}
    assert versions_by_spec(evolved, rows[:1]) == {0: 1}
