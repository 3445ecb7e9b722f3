"""The chapters, in their order. Each module holds one or two: commands, and what is claimed of them."""

from __future__ import annotations

from deploy.demo.chapters import brokers, compaction, engines, iceberg, orders, outage, proof, start, topics
from deploy.demo.story import Addresses, Chapter


def all_chapters(addresses: Addresses) -> list[Chapter]:
    return [
        start.chapter(),
        orders.chapter(),
        iceberg.chapter(addresses),
        outage.chapter(),
        topics.chapter(),
        topics.to_table(),
        compaction.chapter(addresses),
        engines.chapter(addresses),
        brokers.kafka(addresses),
        brokers.mqtt(addresses),
        proof.chapter(),
    ]
