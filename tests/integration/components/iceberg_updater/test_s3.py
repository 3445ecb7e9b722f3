"""Tables whose files and metadata are on S3."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.subscribers import ComponentContext, LakeSettings
from components.iceberg_updater.settings import UpdaterSettings
from components.iceberg_updater.subscriber import IcebergUpdater
from components.lib.lake.iceberg import live_digest
from components.lib.lake.iceberg.stamp import Stamp
from components.lib.storage_manager import StorageManager
from registry.contract import MetadataStore
from tests.lake import iceberg_tables
from tests.parquet_files import BY_NAME, row


@pytest.mark.slow
async def test_inserted_and_read_on_s3(url: str, store: MetadataStore, s3_lake: LakeSettings) -> None:
    context = ComponentContext(store, SystemLoopClock(), SecretStr(url), s3_lake)
    table = await store.create_table("shop", "orders", f"{s3_lake.warehouse}/shop/orders", BY_NAME.draft())
    updater = IcebergUpdater(UpdaterSettings(), context)
    await updater.start()
    tables = iceberg_tables(url, s3_lake)
    try:
        async with StorageManager(context) as manager:
            for number in range(3):
                rows = [row(number, "a"), row(number + 10, "b")]
                await manager.insert("shop.orders", pa.Table.from_pylist(rows, BY_NAME.arrow()), sync=True)
                async with store.consistent_read() as snapshot:
                    await updater.on_refresh(snapshot)
        loaded = tables.load(table)
        assert loaded is not None
        assert loaded.metadata_location.startswith("s3://")
        assert sorted(loaded.scan().to_arrow()["id"].to_pylist()) == [0, 1, 2, 10, 11, 12]
        assert len(list(loaded.scan(row_filter="name = 'b'").plan_files())) == 3
        assert live_digest(loaded) == Stamp.read(loaded.metadata).digest
        assert len(loaded.metadata.snapshots) == 3
    finally:
        await updater.stop()
        tables.close()
