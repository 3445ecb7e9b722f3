"""Alembic's entry point: `registry.migrate` passes an open connection and controls the transaction."""

from __future__ import annotations

from alembic import context

from registry.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=False,  # the caller's transaction holds all steps, on both backends
    render_as_batch=True,
)
context.run_migrations()
