"""The settings of this component in subscriptions.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from astha.brokers.kafka import KafkaConnection
from astha.settings.brokers import SaslSettings, TlsSettings, secrets_of
from components.lib.change_formats import FormatSettings

Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]

_TABLES_INTERVAL_S = 0.004


def _split(servers: object) -> object:
    return [part.strip() for part in servers.split(",")] if isinstance(servers, str) else servers


Server = Annotated[str, Field(pattern=r"^[^\s,/@]+:[0-9]{1,5}$")]
Servers = Annotated[tuple[Server, ...], BeforeValidator(_split), Field(min_length=1)]


class KafkaSinkSettings(FormatSettings):
    """The format's settings apply to layout `tables`."""

    bootstrap_servers: Servers = Field(description="Brokers to connect to first: host:port, separated by commas.")
    layout: Literal["tables", "transactions"] = Field(
        "tables", description="One topic per table with a record per row change, or one topic with a record per commit."
    )
    prefix: str = Field(
        "astha",
        pattern=r"^[a-zA-Z0-9._-]{1,200}$",
        description="Topics are PREFIX.<table>, PREFIX.transaction and PREFIX.transactions.",
    )
    transaction_topic: bool = Field(
        False, description="Layout `tables`: also send BEGIN and END of each commit to PREFIX.transaction."
    )
    heartbeat_s: Seconds = Field(1.0, description="Layout `transactions`: interval of heartbeat records.")
    send_interval_s: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Least time between two deliveries: commits that arrive meanwhile are sent together. A commit "
        "after a pause is sent at once. null: 4 ms in layout `tables`, 0 in layout `transactions`.",
    )
    compression: Literal["none", "lz4", "zstd"] = Field("lz4", description="Compression of record batches.")
    tls: TlsSettings | None = Field(None, description="Use TLS, with these settings.")
    sasl: SaslSettings | None = Field(None, description="Authenticate with a user name and password.")
    create_topics: bool = Field(True, description="Whether to create missing topics.")
    partitions: Count = Field(3, description="Partitions of created topics of layout `tables`.")
    replication_factor: Count | None = Field(
        None, description="Replicas of created topics; null: the broker's default."
    )
    retention_s: Seconds = Field(
        7 * 86400.0, description="Retention of created topics PREFIX.transactions and PREFIX.transaction."
    )
    max_request_bytes: Annotated[int, Field(ge=16_384)] = Field(
        1_000_000, description="Largest record and request. Brokers and topics limit records to about 1 MiB by default."
    )
    max_in_flight_bytes: Count = Field(16 * 1024 * 1024, description="Bytes sent and not yet acknowledged.")
    acknowledge_timeout_s: Seconds = Field(
        20.0, description="A delivery not acknowledged by then is retried; less than the lane's delivery_timeout_s."
    )
    request_timeout_s: Seconds = Field(10.0, description="A request without a response by then is sent again.")
    connect_timeout_s: Seconds = Field(4.0, description="Time to connect; less than the lane's health_timeout_s.")
    outage_tolerance_s: float = Field(
        30.0, ge=0, description="An outage shorter than this only delays deliveries; a longer one ends in a refresh."
    )

    def secrets(self) -> Iterator[str]:
        yield from secrets_of(self.sasl, self.tls)

    @property
    def connection(self) -> KafkaConnection:
        return KafkaConnection(self.bootstrap_servers, self.tls, self.sasl, self.connect_timeout_s)

    @property
    def least_interval_s(self) -> float:
        """Returns the least time between two deliveries. Followers wait for records of layout `transactions`, so the
        next delivery begins with the acknowledgement of the one before: what arrives in between is sent together.
        """
        if self.send_interval_s is not None:
            return self.send_interval_s
        return _TABLES_INTERVAL_S if self.layout == "tables" else 0.0

    @property
    def transactions_topic(self) -> str:
        return f"{self.prefix}.transactions"

    @property
    def markers_topic(self) -> str:
        """Returns the topic of BEGIN and END records."""
        return f"{self.prefix}.transaction"

    def topic_of(self, table: str) -> str:
        return f"{self.prefix}.{table}"
