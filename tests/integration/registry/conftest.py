from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from registry.embedded_postgres import EmbeddedPostgres
from tests.doubles.proxy import PostgresProxy


@pytest.fixture
async def proxy(postgres: EmbeddedPostgres) -> AsyncIterator[PostgresProxy]:
    """A proxy before the shared server, so that a test breaks only its own connections."""
    async with PostgresProxy("127.0.0.1", postgres.port) as between:
        yield between
