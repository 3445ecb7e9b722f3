"""The clients of a sink. Opening one blocks, so it is done in the sink's threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient

from astha.brokers.errors import BrokerError
from components.kafka_sink.errors import BrokerUnusable
from components.kafka_sink.settings import KafkaSinkSettings

T = TypeVar("T")

_NEVER_MS = 7 * 86_400_000
_BATCH_BYTES = 256 * 1024
_FETCH_BYTES = 4 * 1024 * 1024


class KafkaClients:
    """Opens clients with one sink's settings. Every method raises BrokerUnusable."""

    def __init__(self, settings: KafkaSinkSettings, name: str) -> None:
        self._settings = settings
        self._name = name

    def producer(self, linger_ms: int = 0) -> KafkaProducer:
        """Returns an idempotent producer. It retries a record for as long as it is open: with the same producer a retry
        is neither duplicated nor reordered. `linger_ms` has no effect on whole batches.
        """
        settings = self._settings
        compression = None if settings.compression == "none" else settings.compression
        return self._open(
            KafkaProducer,
            "producer",
            acks="all",
            enable_idempotence=True,
            compression_type=compression,
            batch_size=min(_BATCH_BYTES, settings.max_request_bytes),
            linger_ms=linger_ms,
            max_request_size=settings.max_request_bytes,
            max_block_ms=int(settings.connect_timeout_s * 1000),
            delivery_timeout_ms=_NEVER_MS,
            request_timeout_ms=int(settings.request_timeout_s * 1000),
            allow_auto_create_topics=False,
            metrics_enabled=False,
        )

    def admin(self) -> KafkaAdminClient:
        return self._open(KafkaAdminClient, "admin", request_timeout_ms=int(self._settings.connect_timeout_s * 1000))

    def consumer(self) -> KafkaConsumer:
        return self._open(
            KafkaConsumer,
            "consumer",
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_bytes=_FETCH_BYTES,
            max_partition_fetch_bytes=_FETCH_BYTES,
            max_poll_records=2_000,
            request_timeout_ms=int(self._settings.request_timeout_s * 1000),
            metrics_enabled=False,
        )

    def _open(self, kind: Callable[..., T], purpose: str, **options: Any) -> T:
        try:
            return self._settings.connection.open(kind, f"astha-{self._name}-{purpose}", **options)
        except BrokerError as error:
            raise BrokerUnusable(str(error)) from error
