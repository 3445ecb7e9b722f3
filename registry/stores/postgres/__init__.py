"""The registry in PostgreSQL.

The verbs that touch many rows are one statement each, and a statement is a transaction: one round trip. Many rows
travel as one array parameter a column, which costs nearly as little as COPY and can be joined with.
"""

from registry.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
