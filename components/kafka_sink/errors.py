"""What is wrong with a broker or topic, in words that name the remedy."""

from __future__ import annotations

from kafka import errors as kafka_errors

from astha.brokers.kafka import describe
from astha.subscribers import Retry
from components.kafka_sink.settings import KafkaSinkSettings


class BrokerUnusable(Retry):
    """No broker can be reached, or it refuses this client."""


class NotAcknowledged(Retry):
    """Records were sent and not acknowledged in time. They stay in the producer, which keeps trying."""


class GaveWay(Retry):
    """Records were sent, and another call is more urgent than to wait for their acknowledgement."""


class SendFailed(Retry):
    """A broker refused records for good, and the producer was closed."""


class TopicUnusable(Retry):
    """A topic is missing, has the wrong shape, or may not be used."""


def explain(settings: KafkaSinkSettings, error: BaseException, topic: str = "") -> str:
    """Returns what an error of an open client means."""
    name = f"topic {topic}" if topic else "a topic"
    principal = settings.connection.principal
    if isinstance(error, kafka_errors.TopicAuthorizationFailedError):
        return f"not authorised for {name}: allow {principal} to describe and write it"
    if isinstance(error, kafka_errors.ClusterAuthorizationFailedError):
        return f"not authorised for the cluster: allow {principal} IdempotentWrite, and Create for new topics"
    if isinstance(error, kafka_errors.MessageSizeTooLargeError | kafka_errors.RecordListTooLargeError):
        return (
            f"a record is larger than {name} or its broker allows: raise max.message.bytes of the topic, or lower "
            "`max_request_bytes`"
        )
    if isinstance(error, kafka_errors.UnknownTopicOrPartitionError):
        return f"there is no {name}: create it, or set `create_topics: true`"
    if isinstance(error, kafka_errors.InvalidReplicationFactorError):
        return f"{name} can't be created: the cluster has too few brokers for `replication_factor`"
    if isinstance(error, kafka_errors.NodeNotReadyError | kafka_errors.KafkaConnectionError):
        return f"no broker is reachable at {', '.join(settings.bootstrap_servers)}: {describe(error)}"
    return f"{name}: {describe(error)}"
