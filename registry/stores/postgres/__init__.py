"""The registry in PostgreSQL.

Each bulk verb is a single statement, hence one transaction and one round trip. Rows travel as one array parameter per
column, which is nearly as fast as COPY and can be joined with other tables.
"""

from registry.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
