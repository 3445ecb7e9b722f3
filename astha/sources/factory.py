"""Opens the source of a daemon, or the live source for a registry's URL. Only the one that is opened is imported."""

from __future__ import annotations

from astha.clock import LoopClock
from astha.errors import ConfigError
from astha.extras import install
from astha.settings.groups import PostgresSourceSettings, TailSettings
from astha.settings.registry import conninfo_of
from astha.settings.source import SourceSettings, StreamAddress
from astha.sources.contract import LiveSource, PositionUnit, Source
from astha.sources.limits import TransactionLimits
from registry.contract import MetadataStore
from registry.engines import parse_url

_UNITS: dict[str, PositionUnit] = {"postgresql": "bytes", "cockroachdb": "nanoseconds"}


def open_source(
    url: str,
    store: MetadataStore,
    settings: PostgresSourceSettings,
    tail: TailSettings,
    clock: LoopClock,
    group: str = "astha",
) -> Source:
    """Sources keep their position in the database: in a slot, in a row, in an item, or by trimming the change log."""
    parsed = parse_url(url)
    if parsed.drivername == "cockroachdb":
        from astha.sources.cockroachdb import CockroachSource

        return CockroachSource(conninfo_of(parsed), store, settings, clock, group)
    if parsed.drivername == "postgresql":
        from astha.sources.postgres.source import PostgresSource

        return PostgresSource(conninfo_of(parsed), store, settings, clock, group)
    limits = TransactionLimits(settings.transaction_limit_events, settings.transaction_limit_bytes)
    if parsed.drivername == "dynamodb":
        from astha.sources.dynamodb.source import DynamoSource

        return DynamoSource(url, group, limits=limits, settings=tail, clock=clock)
    from astha.sources.sqlite import SqliteSource

    return SqliteSource(url, store, limits=limits, settings=tail)


def open_follower(
    address: StreamAddress, settings: SourceSettings, store: MetadataStore, group: str, url: str, clock: LoopClock
) -> Source:
    """Opens the transaction stream of another daemon. `url` is that of the registry, which both use.

    Raises ConfigError if the extra of the transport is not installed.
    """
    unit = _UNITS.get(parse_url(url).drivername, "changes")
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
    if parsed.drivername == "cockroachdb":
        from astha.sources.cockroachdb import CockroachLiveSource

        return CockroachLiveSource(conninfo_of(parsed), settings, clock)
    if parsed.drivername == "postgresql":
        from astha.sources.postgres.live_source import PostgresLiveSource

        return PostgresLiveSource(conninfo_of(parsed), settings, clock)
    limits = TransactionLimits(settings.transaction_limit_events, settings.transaction_limit_bytes)
    if parsed.drivername == "dynamodb":
        from astha.sources.dynamodb.live_source import DynamoLiveSource

        return DynamoLiveSource(url, limits, tail, clock)
    from astha.sources.sqlite import SqliteLiveSource

    return SqliteLiveSource(url, limits, tail)
