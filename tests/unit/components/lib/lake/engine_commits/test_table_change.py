from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from components.lib.lake.engine_commits import IcebergMetadata, InvalidCommit, read_change
from components.lib.lake.iceberg import Stamp, live_digest
from registry.position import Position
from tests.unit.components.lib.lake.engine_commits.lake import SCHEMA, metadata_of, rows, warehouse
from tests.unit.components.lib.lake.engine_commits.requests import applied, set_ref

pytestmark = pytest.mark.filterwarnings("ignore:Delete operation did not match any records")


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    with warehouse(tmp_path) as catalog:
        yield _create(catalog)


def _create(catalog: SqlCatalog) -> Table:
    return catalog.create_table("shop.orders", SCHEMA)


def stamped(table: Table, base: IcebergMetadata | None, version: int = 1) -> IcebergMetadata:
    """The table's metadata with the stamp that follows from the base's."""
    metadata = metadata_of(table)
    if base is not None:
        own = {name: value for name, value in base.properties.items() if name.startswith("astha.")}
        metadata = msgspec.structs.replace(metadata, properties={**metadata.properties, **own})
    change = read_change(table.io, base, metadata)
    return change.stamped(schema_version=version, table_id=7, registry="r")


def test_the_stamp_of_a_new_table(table: Table) -> None:
    found = stamped(table, None).properties
    assert (found["astha.table-id"], found["astha.registry"], found["astha.files"]) == ("7", "r", "0")
    assert (found["astha.schema-version"], found["astha.schema-id"]) == ("1", "0")
    assert "astha.snapshot" not in found


def test_the_stamp_follows_each_commit(table: Table) -> None:
    base = stamped(table, None)
    base = msgspec.structs.replace(base, properties={**base.properties, "astha.position": "42"})
    for number in range(3):
        table.append(rows(number))
        base = stamped(table, base, version=number)
        stamp = Stamp.parse(base.properties)
        assert stamp.digest == live_digest(table)
        assert (stamp.snapshot, stamp.position) == (table.metadata.current_snapshot_id, Position(42))
        assert base.properties["astha.schema-version"] == str(number)
    table.delete()
    assert Stamp.parse(stamped(table, base).properties).digest.files == 0


def test_a_commit_past_the_stamp_is_part_of_the_change(table: Table) -> None:
    base = stamped(table, None)
    table.append(rows(1))
    past = metadata_of(table)
    table.append(rows(2))
    unknown = msgspec.structs.replace(past, properties=base.properties)
    change = read_change(table.io, unknown, metadata_of(table))
    assert len(change.difference.added) == 2
    assert Stamp.parse(change.stamped(schema_version=1, table_id=7, registry="r").properties).digest == live_digest(
        table
    )


def test_operations(table: Table) -> None:
    base = stamped(table, None)

    def changed() -> tuple[str, int | None, int | None]:
        found = read_change(table.io, base, metadata_of(table))
        return found.operation, found.snapshot_id, found.parent_snapshot_id

    assert changed() == ("metadata", None, None)
    table.append(rows(1))
    first = table.metadata.current_snapshot_id
    assert changed() == ("append", first, None)
    base = stamped(table, base)
    table.append(rows(2))
    table.append(rows(3))
    assert changed()[0] == "append"
    base = stamped(table, base)
    table.delete()
    assert changed()[0] == "delete"
    base = stamped(table, base)
    back = applied(base, set_ref(first or 0))
    found = read_change(table.io, base, back)
    assert (found.operation, found.snapshot_id, found.engine) == ("append", first, None)
    gone = applied(base, {"action": "remove-snapshot-ref", "ref-name": "main"})
    assert (read_change(table.io, base, gone).operation, gone.current_snapshot_id) == ("overwrite", None)
    assert (
        "astha.snapshot"
        not in read_change(table.io, base, gone).stamped(schema_version=1, table_id=7, registry="r").properties
    )


def test_the_engine_is_named(table: Table) -> None:
    table.append(rows(1), snapshot_properties={"engine-name": "spark", "engine-version": "4.1.4"})
    assert read_change(table.io, None, metadata_of(table)).engine == "spark 4.1.4"


def test_a_stamp_whose_snapshot_has_expired(table: Table) -> None:
    base = stamped(table, None)
    lost = msgspec.structs.replace(base, properties={**base.properties, "astha.snapshot": "5"})
    with pytest.raises(InvalidCommit, match="snapshot 5, the last one that the registry knows, has expired"):
        read_change(table.io, lost, metadata_of(table))
