"""What the sinks for Kafka and MQTT cost beside bare clients and Debezium, and how late a follower is.

Debezium is fetched on demand and takes minutes, so a quick run leaves it out.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.fanout.debezium_peer import debezium_figures
from benchmarks.fanout.followers import follower_figures
from benchmarks.fanout.kafka import kafka_figures
from benchmarks.fanout.mqtt import mqtt_figures
from benchmarks.report import Report, run
from tests.servers.kafka import KafkaBroker


async def measure(report: Report) -> None:
    with tempfile.TemporaryDirectory(prefix="astha-benchmark-") as name, KafkaBroker(Path(name)) as broker:
        await kafka_figures(report, broker)
        await mqtt_figures(report)
        await follower_figures(report, broker)
        debezium_figures(report, broker)


if __name__ == "__main__":
    sys.exit(run("fan-out", measure))
