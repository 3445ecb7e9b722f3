"""Clients of the catalog: each says whether a commit happened, did not happen, or may have happened."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import duckdb
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import In
from pyiceberg.table import CommitTableResponse, Table

from tests.e2e.engines import Rows, load_extensions
from tests.e2e.expected_rows import amount_of, kind_of
from tests.integration.components.iceberg_updater.spark_process import Spark

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("kind", pa.string()),
        pa.field("amount", pa.int32()),
        pa.field("note", pa.string()),
    ]
)

_REFUSED = (CommitFailedException, ValidationException)
"""The second: after a refusal PyIceberg looks whether trying again is sound."""


class NotCommitted(Exception):
    """The commit certainly did not happen."""


class MaybeCommitted(Exception):
    """There was no response, or one that does not say."""


class _ReportingCatalog(RestCatalog):
    """Knows whether a commit was sent."""

    sent = False

    def commit_table(self, table: Table, *changes: Any, **named: Any) -> CommitTableResponse:
        self.sent = True
        response: CommitTableResponse = super().commit_table(table, *changes, **named)
        return response


def _among(numbers: Sequence[int]) -> In:
    return In("id", numbers)  # type: ignore[call-arg]  # its generated signature lacks the literals


class PyIcebergClient:
    """A new connection for each operation, to any of the catalogs."""

    def __init__(self, uris: Sequence[str], seed: str) -> None:
        self._uris = uris
        self._random = random.Random(seed)

    def append(self, table: str, added: Sequence[int]) -> None:
        self._commit(table, lambda loaded: loaded.append(rows_of(added)))

    def delete(self, table: str, removed: Sequence[int]) -> None:
        self._commit(table, lambda loaded: loaded.delete(_among(removed)))

    def overwrite(self, table: str, added: Sequence[int], removed: Sequence[int]) -> None:
        self._commit(table, lambda loaded: loaded.overwrite(rows_of(added), _among(removed)))

    def load(self, table: str) -> Table:
        loaded: Table = self.catalog().load_table(table)
        return loaded

    def roll_back(self, loaded: Table, snapshot_id: int) -> None:
        """Makes an older snapshot the current one, if the table has not changed since it was loaded."""
        _tell(loaded.catalog, lambda: loaded.manage_snapshots().rollback_to_snapshot(snapshot_id).commit())

    def read(self, table: str) -> Rows:
        found = self.load(table).scan(selected_fields=("id", "amount")).to_arrow()
        return sorted(zip(found["id"].to_pylist(), found["amount"].to_pylist(), strict=True))

    def catalog(self) -> _ReportingCatalog:
        """Tries one after the other, as behind one address."""
        first, *others = self._random.sample(self._uris, len(self._uris))
        for uri in others:
            with suppress(OSError):
                return _ReportingCatalog("lake", uri=uri)
        return _ReportingCatalog("lake", uri=first)

    def _commit(self, table: str, change: Callable[[Table], None]) -> None:
        try:
            loaded = self.load(table)
        except Exception as error:
            raise NotCommitted(repr(error)) from error
        _tell(loaded.catalog, lambda: change(loaded))


def _tell(catalog: Catalog, change: Callable[[], None]) -> None:
    try:
        change()
    except Exception as error:
        assert isinstance(catalog, _ReportingCatalog)
        if not catalog.sent or isinstance(error, _REFUSED):
            raise NotCommitted(repr(error)) from error
        raise MaybeCommitted(repr(error)) from error


class SparkClient:
    """One session for the whole run, with one of the catalogs."""

    def __init__(self, spark: Spark) -> None:
        self._spark = spark

    def append(self, table: str, added: Sequence[int]) -> None:
        self._commit(f"INSERT INTO astha.{table} {_selected(added)}")

    def delete(self, table: str, removed: Sequence[int]) -> None:
        self._commit(f"DELETE FROM astha.{table} WHERE id IN ({_listed(removed)})")

    def overwrite(self, table: str, added: Sequence[int], removed: Sequence[int]) -> None:
        self._commit(
            f"MERGE INTO astha.{table} AS t USING ({_selected([*added, *removed])}) AS s ON t.id = s.id "
            f"WHEN MATCHED THEN DELETE WHEN NOT MATCHED AND s.id IN ({_listed(added)}) THEN INSERT *"
        )

    def read(self, table: str) -> Rows:
        return sorted((row[0], row[1]) for row in self._spark.sql(f"SELECT id, amount FROM astha.{table}"))

    def _commit(self, statement: str) -> None:
        try:
            self._spark.sql(statement)
        except AssertionError as error:
            said = str(error)
            if "CommitFailedException" in said or "ValidationException" in said:
                raise NotCommitted(said) from error
            raise MaybeCommitted(said) from error


def read_with_duckdb(uri: str, table: str) -> Rows:
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        load_extensions(connection, "httpfs", "avro", "iceberg")
        connection.execute(f"ATTACH 'lake' (TYPE iceberg, ENDPOINT '{uri}', AUTHORIZATION_TYPE 'none')")
        return sorted(connection.execute(f"SELECT id, amount FROM lake.{table}").fetchall())


def ids_of(table: Table, snapshot_id: int | None = None) -> list[int]:
    found: list[int] = table.scan(selected_fields=("id",), snapshot_id=snapshot_id).to_arrow()["id"].to_pylist()
    return found


def rows_of(numbers: Sequence[int]) -> pa.Table:
    content = [{"id": number, "kind": kind_of(number), "amount": amount_of(number)} for number in numbers]
    return pa.Table.from_pylist(content, schema=SCHEMA)


def _selected(numbers: Sequence[int]) -> str:
    values = ", ".join(f"({number}L, '{kind_of(number)}', {amount_of(number)}, NULL)" for number in numbers)
    return f"SELECT id, kind, amount, CAST(note AS string) AS note FROM VALUES {values} AS v(id, kind, amount, note)"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
