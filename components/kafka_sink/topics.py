"""The topics of a sink: created if missing, and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from components.kafka_sink.errors import BrokerUnusable, TopicUnusable, explain
from components.kafka_sink.settings import KafkaSinkSettings

_MISSING = 3
_SIZE = "max.message.bytes"
_DEFAULT_SIZE = 1_048_588
_BATCH_OVERHEAD = 1_024


class TopicSpec(msgspec.Struct, frozen=True):
    """A topic that the sink needs."""

    name: str
    partitions: int
    cleanup: str
    single: bool = False  # whether it must have one partition


class Topic(msgspec.Struct, frozen=True):
    """A topic as the broker describes it. `id` changes if it is deleted and created again."""

    name: str
    id: str
    partitions: int


def specs(settings: KafkaSinkSettings, tables: frozenset[str]) -> list[TopicSpec]:
    if settings.layout == "transactions":
        return [TopicSpec(settings.transactions_topic, 1, "delete", single=True)]
    found = [TopicSpec(settings.topic_of(table), settings.partitions, "compact") for table in sorted(tables)]
    if settings.transaction_topic:
        found.append(TopicSpec(settings.markers_topic, 1, "delete", single=True))
    return found


def ensure_topics(
    admin: KafkaAdminClient, settings: KafkaSinkSettings, wanted: Sequence[TopicSpec]
) -> dict[str, Topic]:
    """Returns the topics by name, and creates those that are missing. Raises TopicUnusable."""
    found = _describe(admin, settings, wanted)
    missing = [spec for spec in wanted if spec.name not in found]
    if missing:
        if not settings.create_topics:
            names = ", ".join(spec.name for spec in missing)
            raise TopicUnusable(f"there is no topic {names}: create it, or set `create_topics: true`")
        for spec in missing:
            _create(admin, settings, spec)
        found = _describe(admin, settings, wanted)
    for spec in wanted:
        topic = found.get(spec.name)
        if topic is None:
            raise TopicUnusable(f"topic {spec.name} was created and is not known to the broker yet")
        if spec.single and topic.partitions != 1:
            raise TopicUnusable(
                f"topic {spec.name} has {topic.partitions} partitions, which would lose the order of commits: "
                "delete it, or choose another `prefix`"
            )
    return found


def missing_topics(admin: KafkaAdminClient, settings: KafkaSinkSettings, wanted: Sequence[TopicSpec]) -> list[str]:
    """Raises BrokerUnusable, or TopicUnusable if a topic may not be used."""
    found = _describe(admin, settings, wanted)
    return [spec.name for spec in wanted if spec.name not in found]


def largest_record(admin: KafkaAdminClient, settings: KafkaSinkSettings, topics: Sequence[str]) -> int:
    """Returns how large a record may be for every one of these topics. Without the right to read their settings,
    `max_request_bytes` decides alone.
    """
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic, {_SIZE: None}) for topic in topics]
    try:
        described = admin.describe_configs(resources, config_filter="all")
        configs: Mapping[str, Any] = described.get("topic", {})
        limits = [int(found[_SIZE]["value"]) for found in configs.values() if found.get(_SIZE)]
    except (KafkaError, AttributeError, KeyError, TypeError, ValueError):
        limits = []
    return min([settings.max_request_bytes, *limits]) - _BATCH_OVERHEAD


def _describe(admin: KafkaAdminClient, settings: KafkaSinkSettings, wanted: Sequence[TopicSpec]) -> dict[str, Topic]:
    try:
        described = admin.describe_topics([spec.name for spec in wanted])
    except KafkaError as error:
        raise BrokerUnusable(explain(settings, error)) from error
    found = {}
    for topic in described:
        code, name = topic["error_code"], topic["name"]
        if code == _MISSING:
            continue
        if code != 0:
            raise TopicUnusable(explain(settings, for_code(code)(), name))
        found[name] = Topic(name, str(topic["topic_id"]), len(topic["partitions"]))
    return found


def _create(admin: KafkaAdminClient, settings: KafkaSinkSettings, spec: TopicSpec) -> None:
    configs = {"cleanup.policy": spec.cleanup}
    if spec.cleanup == "delete":
        configs["retention.ms"] = str(int(settings.retention_s * 1000))
    if settings.max_request_bytes > _DEFAULT_SIZE:
        configs[_SIZE] = str(settings.max_request_bytes + _BATCH_OVERHEAD)
    options = {
        "num_partitions": spec.partitions,
        "replication_factor": settings.replication_factor or -1,
        "configs": configs,
    }
    try:
        admin.create_topics({spec.name: options}, wait_for_metadata=True)
    except TopicAlreadyExistsError:
        return  # another process was first
    except KafkaError as error:
        raise TopicUnusable(explain(settings, error, spec.name)) from error
