"""The session that commands open: registry, catalog and storage."""

from __future__ import annotations

import pytest

from astha.cli.exit_codes import Exit, Failure
from astha.settings import Settings, load_settings
from components.lib.lake.iceberg import CatalogUnavailable
from components.lib.lake.lake_session import LakeSession, open_lake, run_with_lake
from components.lib.lake.storage.objects import StorageUnavailable
from registry.errors import NotFound
from registry.models import LAKE_IDENTITY


@pytest.fixture
def settings(sqlite_url: str) -> Settings:
    return load_settings(flags={"registry": {"url": sqlite_url}})


@pytest.mark.parametrize("error", [CatalogUnavailable("no catalog"), StorageUnavailable("no storage")])
def test_an_unavailable_catalog_or_storage_ends_the_command(settings: Settings, error: Exception) -> None:
    async def work(_: LakeSession) -> None:
        raise error

    with pytest.raises(Failure, match=str(error)) as raised:
        run_with_lake(settings, work)
    assert raised.value.exit_code == Exit.UNAVAILABLE


def test_other_errors_are_raised_as_they_are(settings: Settings) -> None:
    async def work(session: LakeSession) -> None:
        await session.find_table("shop.orders")

    with pytest.raises(NotFound, match=r"no table shop\.orders"):
        run_with_lake(settings, work)


async def test_reading_records_no_identity(settings: Settings) -> None:
    async with open_lake(settings) as session:
        await session.iceberg_tables(read_only=True)
        assert await session.store.get_source_identity(LAKE_IDENTITY) is None
    async with open_lake(settings) as session:
        tables = await session.iceberg_tables()
        assert await session.iceberg_tables() is tables
        assert await session.store.get_source_identity(LAKE_IDENTITY) is not None
