"""The checks of a daemon that follows another one: its broker, its topic and the leader that sends."""

from __future__ import annotations

from astha.errors import ConfigError, DecodeError, SourceLost
from astha.events.stream_records import StreamRecord, decode_record
from astha.extras import install
from astha.preflight.results import PreflightResult, ok, problem, unknown, warning
from astha.settings import Settings
from astha.settings.source import StreamAddress
from astha.wiring import require_group
from registry.connect import open_store
from registry.errors import RegistryError
from registry.models import DaemonLease

_HEARTBEAT_WITHIN_S = 5.0
_BROKER, _LEADER, _TABLES, _REGISTRY = "broker", "leader", "tables of the stream", "registry of the stream"


async def follower_checks(settings: Settings, tables: frozenset[str]) -> list[PreflightResult]:
    """`tables` are those that components of this daemon subscribe to."""
    address = settings.source.address
    if address is None:
        return []
    results = [_group(settings)]
    try:
        record = await _first_record(address, settings)
    except ConfigError as error:
        return [*results, problem(_BROKER, str(error), "correct source.url, source.kafka or source.mqtt")]
    except SourceLost as error:
        return [*results, unknown(_BROKER, str(error), "check that the broker runs and that source.url is correct")]
    results.append(ok(_BROKER, f"{address.shown} can be read"))
    if record is None:
        return [
            *results,
            warning(
                _LEADER,
                f"no record within {_HEARTBEAT_WITHIN_S:.0f} s",
                "start the leader, with a sink that sends transactions to this address",
            ),
        ]
    results.append(ok(_LEADER, f"group {record.group} sends, in epoch {record.epoch}"))
    return [*results, _tables(record, tables), await _registry(record, settings)]


def _group(settings: Settings) -> PreflightResult:
    try:
        require_group(settings)
    except ConfigError as error:
        return problem("group", str(error), "set `group`")
    return ok("group", settings.group)


def _tables(record: StreamRecord, tables: frozenset[str]) -> PreflightResult:
    missing = tables.difference(record.covers)
    if missing:
        return problem(
            _TABLES,
            f"changes of {', '.join(sorted(missing))} are not sent",
            f"add these tables to the sink's entry in the subscriptions.yaml of group {record.group}",
        )
    return ok(_TABLES, "all subscribed tables are sent")


async def _registry(record: StreamRecord, settings: Settings) -> PreflightResult:
    """A follower reads its snapshots from the registry, which has to be the one whose changes are sent."""
    try:
        lease = await _lease(record.group, settings)
    except RegistryError as error:
        return unknown(_REGISTRY, str(error))
    if lease is None or lease.epoch < record.epoch:
        return problem(
            _REGISTRY,
            f"registry.url names another registry than that of the leader: it does not know epoch {record.epoch} of "
            f"group {record.group}",
            "set registry.url to the leader's registry",
        )
    return ok(_REGISTRY, "the leader's registry is the one of registry.url")


async def _lease(group: str, settings: Settings) -> DaemonLease | None:
    store = await open_store(settings.registry.url.get_secret_value(), settings=settings.registry.store)
    try:
        return await store.get_daemon_lease(group)
    finally:
        await store.close()


async def _first_record(address: StreamAddress, settings: Settings) -> StreamRecord | None:
    """Returns the first record that arrives. Raises ConfigError or SourceLost."""
    try:
        payload = await _next_payload(address, settings)
    except ModuleNotFoundError as error:
        raise ConfigError(f"a package is not installed: {install([address.transport])}") from error
    try:
        return None if payload is None else decode_record(payload)
    except DecodeError as error:
        raise ConfigError(f"{address.shown} has records of another kind: {error}") from error


async def _next_payload(address: StreamAddress, settings: Settings) -> bytes | None:
    if address.transport == "kafka":
        from astha.sources.kafka import probe as kafka
        from astha.sources.kafka.topic import KafkaTopic

        connection = KafkaTopic(address, settings.source.kafka)
        return await kafka.next_payload(connection, f"astha-{settings.group}-check", _HEARTBEAT_WITHIN_S)
    from astha.sources.mqtt import probe as mqtt
    from astha.sources.mqtt.stream import MqttStream

    return await mqtt.next_payload(MqttStream(address, settings.source.mqtt), _HEARTBEAT_WITHIN_S)
