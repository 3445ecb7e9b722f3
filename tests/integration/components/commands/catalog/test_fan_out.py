"""An engine's commit through the catalog reaches consumers of Kafka and subscribers of MQTT, with real brokers."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from pyiceberg.catalog import Catalog

from astha.subscribers.context import ComponentContext
from components import kafka_sink, mqtt_sink
from registry.contract import MetadataStore
from tests.fixtures.daemons import RunDaemon, rows_of
from tests.integration.components.commands.catalog.conftest import ROWS, Serve
from tests.integration.components.commands.catalog.test_writers import client, create, registered
from tests.integration.components.kafka_sink.test_daemon import POLICY
from tests.integration.components.mqtt_sink.listener import Listener
from tests.kafka_reader import materialised
from tests.servers.kafka import KafkaBroker
from tests.servers.mosquitto import Mosquitto

TABLES = frozenset({"tables", "table_files", "iceberg_commits"})


@pytest.mark.slow
async def test_a_commit_reaches_kafka_and_mqtt(
    serve: Serve, store: MetadataStore, context: ComponentContext, run_daemon: RunDaemon, kafka: KafkaBroker,
    mosquitto: Mosquitto, topic_prefix: str,
) -> None:  # fmt: skip
    prefix = f"engines-{topic_prefix}"
    to_kafka = {"bootstrap_servers": kafka.address, "prefix": topic_prefix}
    to_mqtt = {"url": mosquitto.url, "prefix": prefix, "timeout_s": 5.0}
    sinks = {
        "kafka_sink": kafka_sink.create(
            to_kafka, msgspec.structs.replace(context, component="kafka_sink", tables=TABLES)
        ),
        "mqtt_sink": mqtt_sink.create(to_mqtt, msgspec.structs.replace(context, component="mqtt_sink", tables=TABLES)),
    }
    async with serve() as url, Listener(mosquitto, f"{prefix}/#") as listener:
        daemon = await run_daemon(context.registry_url.get_secret_value(), sinks, policy=POLICY)
        await daemon.live()
        await client(url, create)

        def write(catalog: Catalog) -> None:
            catalog.load_table("sales.orders").append(ROWS)
            catalog.load_table("sales.orders").delete("id = 2")

        await client(url, write)
        table = await registered(store)
        assert table.row_count == ROWS.num_rows - 1

        async def same() -> bool:
            await asyncio.sleep(0.2)  # reading topics is heavy
            found = await asyncio.to_thread(materialised, kafka.address, topic_prefix, TABLES)
            return found == await rows_of(store, TABLES)

        await daemon.until(same, "topics that hold the registry's rows")
        commits = await listener.until(f"{prefix}/iceberg_commits/insert/+", 3)
        seen = [message.json()["after"]["operation"] for message in commits]
        assert seen[:2] == ["metadata", "append"]
        assert len(seen) == 3
        (left,) = await store.list_files(table.id)
        added = await listener.until(f"{prefix}/table_files/insert/+", 2)
        assert added[-1].json()["after"]["file_path"] == left.file_path
        await listener.until(f"{prefix}/table_files/delete/+", 1)
        await daemon.stop()
