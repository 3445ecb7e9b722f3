from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from registry.embedded_postgres import EmbeddedPostgres
from tests.doubles.proxy import PostgresProxy


@pytest.fixture
async def proxy(postgres: EmbeddedPostgres) -> AsyncIterator[PostgresProxy]:
    """Before the shared server: what a test breaks is only its own way to it."""
    async with PostgresProxy("127.0.0.1", postgres.port) as between:
        yield between
