"""Each kind of update, compared with what Iceberg's `TableMetadata.Builder` does."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import msgspec
import pytest

from components.lib.lake.engine_commits import CommitConflict, CommitRequest, IcebergMetadata, InvalidCommit
from components.lib.lake.engine_commits.iceberg_metadata import Reference
from tests.unit.components.lib.lake.engine_commits.requests import (
    FILE,
    LOCATION,
    NOW,
    SCHEMA,
    add_snapshot,
    applied,
    commit,
    created,
    set_ref,
    with_snapshots,
)

DAY = {"name": "ts_day", "transform": "day", "source-id": 2}
ASCENDING = {"transform": "identity", "source-id": 1, "direction": "asc", "null-order": "nulls-first"}


def wider(**more: Any) -> dict[str, Any]:
    column = {"id": 4, "name": "price", "required": False, "type": "decimal(9, 2)", **more}
    return {"action": "add-schema", "schema": {**SCHEMA, "schema-id": 77, "fields": [*SCHEMA["fields"], column]}}


def add_spec(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"action": "add-spec", "spec": {"spec-id": 55, "fields": list(fields)}}


# -- the table itself ------------------------------------------------------------------------------------


def test_no_update_and_no_change_return_the_base() -> None:
    base = with_snapshots(created(), 1)
    same: list[list[dict[str, Any]]] = [
        [],
        [set_ref(1)],
        [{"action": "set-location", "location": LOCATION}],
        [{"action": "set-current-schema", "schema-id": 0}],
        [{"action": "remove-snapshots", "snapshot-ids": [99]}],
        [{"action": "remove-snapshot-ref", "ref-name": "nothing"}],
        [{"action": "add-schema", "schema": SCHEMA}],
        [{"action": "upgrade-format-version", "format-version": 2}],
        [{"action": "assign-uuid", "uuid": base.table_uuid}],
    ]
    for updates in same:
        assert applied(base, *updates) is base


def test_a_created_table_has_the_uuid_of_the_client() -> None:
    wanted = str(uuid4())
    updates: list[dict[str, Any]] = [
        {"action": "assign-uuid", "uuid": wanted},
        {"action": "upgrade-format-version", "format-version": 1},
        {"action": "add-schema", "schema": SCHEMA},
        {"action": "set-current-schema", "schema-id": -1},
        add_spec(DAY),
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 9, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": LOCATION},
        add_snapshot(5),
        set_ref(5),
    ]
    table = commit(*updates, requirements=[{"type": "assert-create"}]).apply(None, None, now_ms=NOW)
    assert (table.table_uuid, table.format_version) == (wanted, 1)
    assert table.spec == {"spec-id": 0, "fields": [{**DAY, "field-id": 1000}]}
    assert (table.sort_order["order-id"], table.last_partition_id, table.last_column_id) == (0, 1000, 3)
    assert (table.current_snapshot_id, table.metadata_log) == (5, [])
    with pytest.raises(InvalidCommit, match="no location"):
        commit(*updates[:8]).apply(None, None, now_ms=NOW)
    with pytest.raises(InvalidCommit, match="no current schema"):
        commit(*updates[4:]).apply(None, None, now_ms=NOW)


def test_the_uuid_of_a_table_never_changes() -> None:
    with pytest.raises(InvalidCommit, match="Cannot reassign"):
        applied(created(), {"action": "assign-uuid", "uuid": str(uuid4())})


def test_the_format_version_only_rises() -> None:
    base = created()
    assert applied(base, {"action": "upgrade-format-version", "format-version": 3}).format_version == 3
    with pytest.raises(InvalidCommit, match="Cannot downgrade v2 table to v1"):
        applied(base, {"action": "upgrade-format-version", "format-version": 1})
    with pytest.raises(InvalidCommit, match="unsupported format version: v9"):
        applied(base, {"action": "upgrade-format-version", "format-version": 9})


def test_properties() -> None:
    base = created(properties={"a": "1", "b": "2"})
    changed = applied(base, {"action": "set-properties", "updates": {"b": "3", "c": "4"}})
    assert {**changed.properties, "a": "1", "b": "3", "c": "4"} == changed.properties
    removed = applied(changed, {"action": "remove-properties", "removals": ["a", "unknown"]})
    assert "a" not in removed.properties
    early = applied(removed, {"action": "set-properties", "updated": {"d": "5"}})
    assert applied(early, {"action": "remove-properties", "removed": ["d"]}).properties == removed.properties


def test_clients_cannot_touch_the_stamp_or_reserved_properties() -> None:
    base = msgspec.structs.replace(created(), properties={"astha.digest": "d", "x": "1"})
    assert applied(base, {"action": "set-properties", "updates": {"astha.digest": "0", "uuid": "u"}}) is base
    assert applied(base, {"action": "remove-properties", "removals": ["astha.digest"]}) is base
    assert created(properties={"astha.digest": "0", "uuid": "u"}).properties == created().properties


def test_encryption_keys() -> None:
    key = {"key-id": "k1", "encrypted-key-metadata": "AAA="}
    base = applied(created(), {"action": "add-encryption-key", "encryption-key": key})
    assert base.encryption_keys == [key]
    assert applied(base, {"action": "add-encryption-key", "encryption-key": key}) is base
    assert applied(base, {"action": "remove-encryption-key", "key-id": "k1"}).encryption_keys == []


# -- schemas, partition specs, sort orders ---------------------------------------------------------------


def test_an_added_schema_gets_the_next_id_and_the_highest_column_id() -> None:
    changed = applied(created(), wider(), {"action": "set-current-schema", "schema-id": -1})
    assert (changed.current_schema_id, changed.last_column_id, len(changed.schemas)) == (1, 4, 2)
    again = applied(changed, {"action": "set-current-schema", "schema-id": 0})
    assert (again.current_schema_id, again.last_column_id) == (0, 4)


def test_an_equal_schema_is_reused() -> None:
    base = applied(created(), wider())
    changed = applied(base, wider(type="decimal(9,2)", doc=None), {"action": "set-current-schema", "schema-id": -1})
    assert (changed.current_schema_id, len(changed.schemas)) == (1, 2)
    assert len(applied(base, wider(doc="net")).schemas) == 3


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"id": 1}, "price and id have the same id 1"),
        ({"type": "timestamp_ns"}, "timestamp_ns is not supported until v3"),
        ({"type": "variant"}, "variant is not supported until v3"),
        ({"initial-default": "1"}, "a default value is not supported until v3"),
        ({"type": "money"}, "a type that Iceberg v2 does not have"),
        ({"type": {"type": "list"}}, "not a type of a column"),
        ({"name": None}, "not a column"),
    ],
)
def test_an_invalid_schema(column: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidCommit, match=message):
        applied(created(), wider(**column))


def test_version_3_has_more_types() -> None:
    base = created(properties={"format-version": "3"})
    changed = applied(base, wider(type="variant"), {"action": "set-current-schema", "schema-id": -1})
    assert changed.schema["fields"][-1]["type"] == "variant"


def test_schemas_are_removed_unless_current() -> None:
    base = applied(created(), wider())
    assert len(applied(base, {"action": "remove-schemas", "schema-ids": [1]}).schemas) == 1
    with pytest.raises(InvalidCommit, match="Cannot remove the current schema"):
        applied(base, {"action": "remove-schemas", "schema-ids": [0]})


def test_an_added_spec_gets_ids_and_an_equal_one_is_reused() -> None:
    base = applied(created(), add_spec(DAY), {"action": "set-default-spec", "spec-id": -1})
    assert (base.default_spec_id, base.spec["fields"][0]["field-id"], base.last_partition_id) == (1, 1000, 1000)
    bucket = {"name": "b", "transform": "bucket[16]", "source-id": 1, "field-id": 1007}
    more = applied(base, add_spec({**DAY, "field-id": 1000}, bucket), {"action": "set-default-spec", "spec-id": -1})
    assert (more.default_spec_id, more.last_partition_id) == (2, 1007)
    back = applied(more, add_spec(DAY), {"action": "set-default-spec", "spec-id": -1})
    assert (back.default_spec_id, len(back.partition_specs)) == (1, 3)
    gone = applied(back, {"action": "remove-partition-specs", "spec-ids": [0, 2]})
    assert [spec["spec-id"] for spec in gone.partition_specs] == [1]
    with pytest.raises(InvalidCommit, match="Cannot remove the default"):
        applied(back, {"action": "remove-partition-specs", "spec-ids": [1]})


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({**DAY, "source-id": 9}, "Cannot find source column for partition field: ts_day"),
        ({**DAY, "source-id": 3}, "Invalid source type string for transform: day"),
        ({"name": "x", "transform": "day"}, "without source-id"),
    ],
)
def test_an_invalid_spec(field: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidCommit, match=message):
        applied(created(), add_spec(field))


def test_a_spec_of_version_1_has_sequential_ids() -> None:
    base = created(properties={"format-version": "1"})
    with pytest.raises(InvalidCommit, match="sequential IDs"):
        applied(base, add_spec({**DAY, "field-id": 1001}))


def test_the_source_column_of_the_default_spec_stays() -> None:
    base = applied(created(), add_spec(DAY), {"action": "set-default-spec", "spec-id": -1})
    narrow = {"action": "add-schema", "schema": {**SCHEMA, "fields": SCHEMA["fields"][:1]}}
    with pytest.raises(InvalidCommit, match="Cannot find source column for partition field: ts_day"):
        applied(base, narrow, {"action": "set-current-schema", "schema-id": -1})


def test_sort_orders_start_with_1_and_equal_ones_are_reused() -> None:
    order = {"action": "add-sort-order", "sort-order": {"order-id": 5, "fields": [ASCENDING]}}
    last = {"action": "set-default-sort-order", "sort-order-id": -1}
    base = applied(created(), order, last)
    assert base.default_sort_order_id == 1
    unsorted = applied(base, {"action": "add-sort-order", "sort-order": {"order-id": 3, "fields": []}}, last)
    assert (unsorted.default_sort_order_id, len(unsorted.sort_orders)) == (0, 2)
    assert applied(unsorted, order, last).default_sort_order_id == 1
    with pytest.raises(InvalidCommit, match="unknown sort order: 8"):
        applied(base, {"action": "set-default-sort-order", "sort-order-id": 8})


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"action": "set-current-schema", "schema-id": -1}, "no schema has been added"),
        ({"action": "set-default-spec", "spec-id": -1}, "no spec has been added"),
        ({"action": "set-default-sort-order", "sort-order-id": -1}, "no sort order has been added"),
        ({"action": "set-current-schema", "schema-id": 4}, "unknown schema: 4"),
        ({"action": "set-default-spec", "spec-id": 4}, "unknown spec: 4"),
    ],
)
def test_unknown_ids(update: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidCommit, match=message):
        applied(created(), update)


# -- snapshots and references ----------------------------------------------------------------------------


def test_an_append_moves_main_and_the_logs() -> None:
    table = with_snapshots(created(), 1, 2)
    assert (table.current_snapshot_id, table.last_sequence_number) == (2, 2)
    assert table.refs == {"main": Reference(2, "branch")}
    assert [(entry.snapshot_id, entry.timestamp_ms) for entry in table.snapshot_log] == [(1, NOW + 1), (2, NOW + 2)]
    assert [(entry.timestamp_ms, entry.metadata_file) for entry in table.metadata_log] == [(NOW, FILE), (NOW + 1, FILE)]
    assert table.last_updated_ms == NOW + 2


def test_the_metadata_log_is_limited() -> None:
    base = created(properties={"write.metadata.previous-versions-max": "2"})
    assert len(with_snapshots(base, 1, 2, 3, 4).metadata_log) == 2
    assert (
        len(with_snapshots(created(properties={"write.metadata.previous-versions-max": "0"}), 1, 2).metadata_log) == 1
    )


def test_the_time_of_the_last_update_never_goes_back() -> None:
    base = with_snapshots(created(), 1)
    changed = applied(base, {"action": "set-properties", "updates": {"a": "b"}}, now_ms=NOW - 3_600_000)
    assert changed.last_updated_ms == base.last_updated_ms


def test_a_rollback_is_logged_with_the_time_of_the_commit() -> None:
    base = with_snapshots(created(), 1, 2)
    back = applied(base, set_ref(1), now_ms=NOW + 500)
    assert (back.current_snapshot_id, len(back.snapshots)) == (1, 2)
    assert (back.snapshot_log[-1].snapshot_id, back.snapshot_log[-1].timestamp_ms) == (1, NOW + 500)


def test_intermediate_snapshots_of_one_commit_are_not_in_the_log() -> None:
    base = with_snapshots(created(), 1)
    table = applied(base, add_snapshot(2, 1), set_ref(2), add_snapshot(3, 2), set_ref(3))
    assert [entry.snapshot_id for entry in table.snapshot_log] == [1, 3]
    assert sorted(table.snapshots) == [1, 2, 3]


def test_a_staged_snapshot_is_cherry_picked_later() -> None:
    base = with_snapshots(created(), 1)
    staged = applied(base, add_snapshot(2, 1))
    assert (staged.current_snapshot_id, len(staged.snapshot_log)) == (1, 1)
    branch = applied(staged, set_ref(2, "audit", "branch", **{"min-snapshots-to-keep": 3}))
    assert branch.refs["audit"] == Reference(2, "branch", min_snapshots_to_keep=3)
    picked = applied(branch, set_ref(2))
    assert [entry.snapshot_id for entry in picked.snapshot_log] == [1, 2]


def test_main_is_removed_and_set_again() -> None:
    base = with_snapshots(created(), 1, 2)
    replaced = applied(base, {"action": "remove-snapshot-ref", "ref-name": "main"})
    assert (replaced.current_snapshot_id, dict(replaced.refs), len(replaced.snapshots)) == (None, {}, 2)
    again = applied(replaced, add_snapshot(3), set_ref(3))
    assert again.current_snapshot_id == 3


def test_removed_snapshots_take_references_statistics_and_history_along() -> None:
    statistics = {"snapshot-id": 1, "statistics-path": "s", "file-size-in-bytes": 1}
    base = applied(
        with_snapshots(created(), 1, 2, 3),
        set_ref(1, "v1", "tag"),
        {"action": "set-statistics", "statistics": statistics},
        {"action": "set-partition-statistics", "partition-statistics": statistics},
    )
    assert (len(base.statistics), len(base.partition_statistics)) == (1, 1)
    table = applied(base, {"action": "remove-snapshots", "snapshot-ids": [1, 2]})
    assert (list(table.snapshots), dict(table.refs)) == ([3], {"main": Reference(3, "branch")})
    assert (list(table.statistics), list(table.partition_statistics)) == ([], [])
    assert [entry.snapshot_id for entry in table.snapshot_log] == [3]
    gap = applied(base, {"action": "remove-snapshots", "snapshot-ids": [2]})
    assert [entry.snapshot_id for entry in gap.snapshot_log] == [3]


def test_statistics_are_replaced_and_removed() -> None:
    base = with_snapshots(created(), 1)
    for kind in ("statistics", "partition-statistics"):
        first = applied(base, {"action": f"set-{kind}", kind: {"snapshot-id": 1, "statistics-path": "a"}})
        second = applied(first, {"action": f"set-{kind}", kind: {"snapshot-id": 1, "statistics-path": "b"}})
        name = kind.replace("-", "_")
        assert [found["statistics-path"] for found in getattr(second, name)] == ["b"]
        assert list(getattr(applied(second, {"action": f"remove-{kind}", "snapshot-id": 1}), name)) == []
        assert applied(base, {"action": f"remove-{kind}", "snapshot-id": 1}) is base


@pytest.mark.parametrize(
    ("updates", "message"),
    [
        ([add_snapshot(1)], "Snapshot already exists for id: 1"),
        ([set_ref(9)], "Cannot set main to unknown snapshot: 9"),
        ([set_ref(2, "main", "tag")], "Cannot set main to a tag"),
        ([add_snapshot(-4)], "positive"),
        ([{"action": "add-snapshot", "snapshot": {"snapshot-id": 7}}], "not a snapshot"),
        ([add_snapshot(9, 2, at=NOW - 120_000), set_ref(9)], "more than a minute before"),
        ([add_snapshot(9, 2, at=NOW + 3_600_000), set_ref(9)], "more than a minute after"),
    ],
)
def test_invalid_snapshots_and_references(updates: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(InvalidCommit, match=message):
        applied(with_snapshots(created(), 1, 2), *updates)


def test_a_snapshot_of_an_older_state_is_a_conflict() -> None:
    with pytest.raises(CommitConflict, match="please retry: Cannot add snapshot with sequence number 2"):
        applied(with_snapshots(created(), 1, 2), add_snapshot(3, 2, sequence=2))
    assert applied(with_snapshots(created(), 1, 2), add_snapshot(3, sequence=1)).last_sequence_number == 2


def test_rows_of_version_3_are_numbered() -> None:
    base = created(properties={"format-version": "3"})
    first = add_snapshot(1)
    with pytest.raises(InvalidCommit, match="first-row-id"):
        applied(base, first)
    first["snapshot"] |= {"first-row-id": 0, "added-rows": 10}
    table = applied(base, first, set_ref(1))
    assert (table.next_row_id, _document(table)["next-row-id"]) == (10, 10)
    second = add_snapshot(2, 1)
    second["snapshot"] |= {"first-row-id": 5, "added-rows": 1}
    with pytest.raises(CommitConflict, match="first-row-id is behind"):
        applied(table, second)


def test_the_base_is_never_changed() -> None:
    base = applied(with_snapshots(created(), 1, 2), set_ref(1, "v1", "tag"))
    before = base.encode()
    applied(base, wider(), {"action": "set-current-schema", "schema-id": -1}, add_spec(DAY), set_ref(1))
    applied(base, {"action": "remove-snapshots", "snapshot-ids": [1, 2]})
    applied(base, {"action": "set-properties", "updates": {"a": "b"}})
    assert base.encode() == before


def test_a_hostile_body_is_refused() -> None:
    for body in (b"", b"[]", b'{"requirements": [], "updates": 1}', b"[" * 100_000, b'{"updates": []}'):
        with pytest.raises(InvalidCommit):
            CommitRequest.parse(body)
    deep: Any = "long"
    for _ in range(300):
        deep = {"type": "struct", "fields": [{"id": 4, "name": "a", "required": False, "type": deep}]}
    with pytest.raises(InvalidCommit):
        applied(created(), wider(type=deep))


def _document(metadata: IcebergMetadata) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(metadata.encode())
    return found
