"""What the source asks the cluster beside its changefeed: identity, time, and how long history is kept."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec
from psycopg import sql

from astha.errors import ConfigError
from astha.sources.postgres.slot import Connection, connected
from registry.hlc import position_of
from registry.models import PUBLISHED
from registry.position import Position

__all__ = ["ClusterStatus", "Connection", "cluster_status", "connected", "gc_ttl_s"]

History: TypeAlias = Literal["reserved", "extended", "unreserved", "lost"]

DEFAULT_TTL_S = 14_400
"""CockroachDB's gc.ttlseconds since version 22.2."""

_TTL = re.compile(r"gc\.ttlseconds = (\d+)")
_EXTENDED, _UNRESERVED = 0.5, 0.8
"""Fractions of the garbage collection's TTL."""


class ClusterStatus(msgspec.Struct, frozen=True):
    """`identity` names the history that positions belong to: another cluster has another id, and a restore gives the
    tables other ids.
    """

    identity: str
    now: Position
    gc_ttl_s: int

    def age_s(self, position: Position) -> float:
        return max(self.now - position, 0) / 1e9

    def history_of(self, position: Position) -> History:
        """Whether the changes after a position are still there, in the words of PostgreSQL's wal_status: reserved up to
        half of the TTL, extended, unreserved from four fifths of it, lost when they may be garbage collected.
        """
        used = self.age_s(position) / self.gc_ttl_s
        if used >= 1:
            return "lost"
        return "reserved" if used < _EXTENDED else "extended" if used < _UNRESERVED else "unreserved"


async def cluster_status(connection: Connection, schema: str, tables: Iterable[str]) -> ClusterStatus:
    """`tables` are the subscribed ones. Raises ConfigError if a published table is missing."""
    names = [kind.table for kind in PUBLISHED]
    found = await rows(
        connection,
        "SELECT crdb_internal.cluster_id()::string, cluster_logical_timestamp()::string, "
        + ", ".join("to_regclass(%s)::oid::int" for _ in names),
        [f"{schema}.{name}" for name in names],
    )
    cluster, now, *ids = found[0]
    missing = [name for name, number in zip(names, ids, strict=True) if number is None]
    if missing:
        raise ConfigError(f"schema {schema} lacks {', '.join(missing)}: run `astha registry migrate`")
    identity = f"{cluster}/{zlib.crc32(repr(ids).encode()):08x}"
    return ClusterStatus(identity, position_of(str(now)), await gc_ttl_s(connection, schema, tables))


async def gc_ttl_s(connection: Connection, schema: str, tables: Iterable[str]) -> int:
    """Returns the shortest gc.ttlseconds of the tables."""
    found = []
    for table in sorted(tables) or ["topics"]:
        name = sql.Identifier(schema, table)
        query = sql.SQL("SELECT raw_config_sql FROM [SHOW ZONE CONFIGURATION FROM TABLE {}]").format(name)
        for (text,) in await (await connection.execute(query)).fetchall():
            found += [int(number) for number in _TTL.findall(str(text))]
    return min(found, default=DEFAULT_TTL_S)


async def rows(connection: Connection, query: str, parameters: Iterable[object] = ()) -> list[tuple[object, ...]]:
    # Queries are constants of this package.
    return await (await connection.execute(query.encode(), list(parameters))).fetchall()
