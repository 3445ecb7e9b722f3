"""Whether code of one revision can use the schema of the next: by comparing both, and by planning its statements."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any, TypeAlias

import psycopg
from sqlalchemy import Inspector, inspect

from registry.engines import StoreSettings, parse_url, sqlite_path, sync_engine
from registry.schema import VERSION_TABLE

TableShape: TypeAlias = dict[str, Any]
_PARAMETER = re.compile(r"%\((\w+)\)s")
_LISTED = re.compile(r"'(\w+)'(?:::text)?")
_NUMBERED = re.compile(r"\$(\d+)")


def shapes(url: str) -> dict[str, TableShape]:
    """Returns what statements depend on, of each table."""
    engine = sync_engine(parse_url(url), StoreSettings())
    try:
        found = inspect(engine)
        return {name: _shape(found, name) for name in found.get_table_names() if name != VERSION_TABLE}
    finally:
        engine.dispose()


def _shape(found: Inspector, table: str) -> TableShape:
    unique = [tuple(each["column_names"]) for each in found.get_unique_constraints(table)]
    unique += [
        (*(str(name) for name in each["column_names"]), *map(str, each.get("dialect_options", {}).values()))
        for each in found.get_indexes(table)
        if each["unique"] and not each.get("duplicates_constraint")
    ]
    return {
        "columns": {column["name"]: column for column in found.get_columns(table)},
        "key": tuple(found.get_pk_constraint(table)["constrained_columns"]),
        "unique": set(unique),
        "checks": {str(each["sqltext"]) for each in found.get_check_constraints(table)},
        "references": {
            (*each["constrained_columns"], each["referred_table"]) for each in found.get_foreign_keys(table)
        },
    }


def incompatibilities(before: dict[str, TableShape], after: dict[str, TableShape]) -> list[str]:
    """Returns why statements for the schema `before` may fail with the schema `after`; empty if none can."""
    found = [f"{name} was dropped or renamed" for name in before.keys() - after.keys()]
    for name in sorted(before.keys() & after.keys()):
        found += [f"{name}: {problem}" for problem in _problems(before[name], after[name])]
    return sorted(found)


def _problems(old: TableShape, new: TableShape) -> Iterator[str]:
    for name, column in old["columns"].items():
        now = new["columns"].get(name)
        if now is None:
            yield f"column {name} was dropped or renamed"
        elif str(now["type"]) != str(column["type"]) or now["nullable"] != column["nullable"]:
            yield f"column {name} was {column['type']} or null: {column['nullable']}, and is not the same now"
    for name in new["columns"].keys() - old["columns"].keys():
        if not new["columns"][name]["nullable"] and new["columns"][name]["default"] is None:
            yield f"new column {name} is NOT NULL and has no default: an INSERT without it fails"
    if old["key"] != new["key"]:
        yield f"the key was {old['key']} and is {new['key']}"
    if old["unique"] != new["unique"]:
        yield f"unique columns were {old['unique']} and are {new['unique']}"
    if added := {check for check in new["checks"] - old["checks"] if not _widens(check, old["checks"])}:
        yield f"new checks refuse rows that were accepted: {added}"
    if added := new["references"] - old["references"]:
        yield f"new references refuse rows that were accepted: {added}"


def _widens(check: str, before: set[str]) -> bool:
    """Whether the check lists all values of an earlier one, and more."""
    listed = set(_LISTED.findall(check))
    return any(
        _LISTED.sub("", check).replace(", ", "") == _LISTED.sub("", former).replace(", ", "")
        and listed > set(_LISTED.findall(former))
        for former in before
    )


def unplannable(url: str, statements: Iterable[str]) -> list[str]:
    """Returns the statements that the database can't plan, with its reason. Executes none."""
    return list(_unplannable_sqlite(url, statements) if url.startswith("sqlite") else _unplannable(url, statements))


def _unplannable_sqlite(url: str, statements: Iterable[str]) -> Iterator[str]:
    with closing(sqlite3.connect(sqlite_path(parse_url(url)))) as connection:
        for statement in statements:
            try:
                connection.execute(f"EXPLAIN {statement}", [None] * statement.count("?"))
            except sqlite3.OperationalError as error:
                yield f"{error}: {statement}"


def _unplannable(url: str, statements: Iterable[str]) -> Iterator[str]:
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        for statement in statements:
            names = list(dict.fromkeys(_PARAMETER.findall(statement)))
            text = _PARAMETER.sub(lambda match: f"${names.index(match[1]) + 1}", statement)  # noqa: B023
            count = max(map(int, _NUMBERED.findall(text)), default=0)
            try:
                _plan(connection, text.replace("%%", "%"), ["unknown"] * count)
            except psycopg.Error as error:
                yield f"{error.diag.message_primary}: {statement}"


def _plan(connection: psycopg.Connection[Any], text: str, types: list[str]) -> None:
    """Raises psycopg.Error if the statement can't be planned. A parameter whose type only its value shows is text."""
    declared, nothing = (f"({', '.join(part)})" if types else "" for part in (types, ["NULL"] * len(types)))
    try:
        connection.execute(f"PREPARE planned {declared} AS {text}".encode())
        connection.execute(f"EXPLAIN EXECUTE planned{nothing}".encode())
    except psycopg.errors.IndeterminateDatatype as error:
        at = _NUMBERED.search(error.diag.message_primary or "")
        if at is None or types[int(at[1]) - 1] == "text":
            raise
        _plan(connection, text, [*types[: int(at[1]) - 1], "text", *types[int(at[1]) :]])
    finally:
        connection.execute("DEALLOCATE ALL")
