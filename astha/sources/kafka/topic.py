"""The topic that a follower reads, and how to connect to its brokers."""

from __future__ import annotations

from typing import Any

import msgspec
from kafka import KafkaConsumer
from pydantic import SecretStr

from astha.brokers.errors import BrokerError
from astha.brokers.kafka import KafkaConnection
from astha.errors import SourceLost
from astha.settings.brokers import SaslSettings
from astha.settings.source import KafkaSourceSettings, StreamAddress


class BrokerRefuses(SourceLost):
    """A broker was reached and can't be used until the settings are corrected."""


class KafkaTopic(msgspec.Struct, frozen=True):
    address: StreamAddress
    settings: KafkaSourceSettings

    @property
    def connection(self) -> KafkaConnection:
        address, settings = self.address, self.settings
        sasl = settings.sasl
        if address.user is not None:
            sasl = SaslSettings(user=address.user, password=SecretStr(address.password or ""))
        return KafkaConnection(
            tuple(address.hosts), settings.tls, sasl, settings.connect_timeout_s, "source.url", "source.kafka."
        )

    def consumer(self, client_id: str, group: str | None) -> KafkaConsumer:
        """Raises SourceLost if no broker can be reached, BrokerRefuses if one refuses this client."""
        options: dict[str, Any] = {
            "group_id": group,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "allow_auto_create_topics": False,
            "fetch_min_bytes": 1,
            "fetch_max_wait_ms": 500,
            "fetch_max_bytes": self.settings.fetch_max_bytes,
            "max_partition_fetch_bytes": self.settings.fetch_max_bytes,
            "max_poll_records": 2_000,
            "request_timeout_ms": int(self.settings.request_timeout_s * 1000),
            "metrics_enabled": False,
        }
        try:
            return self.connection.open(KafkaConsumer, client_id, **options)
        except BrokerError as error:
            raise (BrokerRefuses if error.lasting else SourceLost)(str(error)) from error
