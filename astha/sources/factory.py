"""Opens the source of a daemon, or the live source for a registry's URL."""

from __future__ import annotations

from typing import Literal

from astha.clock import LoopClock
from astha.errors import ConfigError
from astha.extras import install
from astha.settings.registry import conninfo_of
from astha.settings.source import SourceSettings, StreamAddress
from astha.sources.contract import LiveSource, Source
from astha.sources.limits import TransactionLimits
from astha.sources.postgres.live_source import PostgresLiveSource
from astha.sources.postgres.source import PostgresSource, PostgresSourceSettings
from astha.sources.sqlite import SqliteLiveSource, SqliteSource, TailSettings
from registry.contract import MetadataStore
from registry.engines import parse_url


def open_source(
    url: str,
    store: MetadataStore,
    settings: PostgresSourceSettings,
    tail: TailSettings,
    clock: LoopClock,
    group: str = "astha",
) -> Source:
    """Sources keep their position in the database: in a slot, by trimming the change log, or in an item."""
    parsed = parse_url(url)
    if parsed.drivername == "postgresql":
        return PostgresSource(conninfo_of(parsed), store, settings, clock, group)
    limits = TransactionLimits(settings.transaction_limit_events, settings.transaction_limit_bytes)
    if parsed.drivername == "dynamodb":
        from astha.sources.dynamodb.source import DynamoSource

        return DynamoSource(url, group, limits=limits, settings=tail, clock=clock)
    return SqliteSource(url, store, limits=limits, settings=tail)


def open_follower(
    address: StreamAddress, settings: SourceSettings, store: MetadataStore, group: str, url: str, clock: LoopClock
) -> Source:
    """Opens the transaction stream of another daemon. `url` is that of the registry, which both use.

    Raises ConfigError if the extra of the transport is not installed.
    """
    unit: Literal["bytes", "changes"] = "bytes" if parse_url(url).drivername == "postgresql" else "changes"
    try:
        if address.transport == "kafka":
            from astha.sources.kafka.source import KafkaSource
            from astha.sources.kafka.topic import KafkaTopic

            return KafkaSource(KafkaTopic(address, settings.kafka), store, group, clock, unit)
        from astha.sources.mqtt.source import MqttSource
        from astha.sources.mqtt.stream import MqttStream

        return MqttSource(MqttStream(address, settings.mqtt), store, group, clock, unit)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"source.url needs a package that is not installed: {install([address.transport])}"
        ) from error


def open_live_source(url: str, settings: PostgresSourceSettings, tail: TailSettings, clock: LoopClock) -> LiveSource:
    """For processes beside the daemon: at most one per free replication slot, on SQLite any number."""
    parsed = parse_url(url)
    if parsed.drivername == "postgresql":
        return PostgresLiveSource(conninfo_of(parsed), settings, clock)
    limits = TransactionLimits(settings.transaction_limit_events, settings.transaction_limit_bytes)
    if parsed.drivername == "dynamodb":
        from astha.sources.dynamodb.live_source import DynamoLiveSource

        return DynamoLiveSource(url, limits, tail, clock)
    return SqliteLiveSource(url, limits, tail)
