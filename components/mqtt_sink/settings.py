"""What subscriptions.yaml accepts under `settings` of this component."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from astha.brokers.mqtt import MqttConnection
from astha.settings.brokers import TlsSettings, secrets_of
from components.lib.change_formats import FormatSettings
from components.mqtt_sink.topics import require_prefix

Seconds = Annotated[float, Field(gt=0)]

_PORTS = {"mqtt": 1883, "mqtts": 8883}
_MAX_IN_FLIGHT = 65_535  # packet identifiers of MQTT
_MAX_CLIENT_ID_BYTES = 65_535
_MAX_PAYLOAD_BYTES = 256 << 20


class MqttSettings(FormatSettings):
    url: str = Field(description="The broker: mqtt://host:port, or mqtts://host:port with TLS.")
    prefix: str = Field("astha", description="First levels of every topic.")
    changes: bool = Field(True, description="Publish one message per changed row, at PREFIX/TABLE/OPERATION/KEY.")
    transactions: bool = Field(True, description="Publish one record per commit at PREFIX/transactions, for followers.")
    keys_in_topics: bool = Field(
        True, description="End the topic of a change with the row's primary key. Without it, there are fewer topics."
    )
    client_id: str | None = Field(
        None, description="Client identifier. Default: a new one for each start. Two clients must not share one."
    )
    user: str | None = Field(None, description="User name at the broker.")
    password: SecretStr | None = Field(None, description="Password at the broker.")
    tls: TlsSettings | None = Field(None, description="Settings of TLS, which an mqtts:// URL uses.")
    keepalive_s: int = Field(15, ge=1, le=65_535, description="Seconds without traffic before the broker is asked.")
    timeout_s: Seconds = Field(
        10.0, description="A broker that does not accept a connection or acknowledge a message for so long is left."
    )
    max_in_flight: int = Field(
        100, ge=1, le=_MAX_IN_FLIGHT, description="Most messages sent and not acknowledged. The broker may allow less."
    )
    max_payload_bytes: int = Field(
        1 << 20, ge=1_024, le=_MAX_PAYLOAD_BYTES, description="Largest payload. A larger commit is sent without rows."
    )
    heartbeat_s: Seconds = Field(1.0, description="Seconds between two heartbeats for followers.")

    @field_validator("url")
    @classmethod
    def _broker(cls, given: str) -> str:
        try:
            parts = urlsplit(given)
            port = parts.port
        except ValueError as error:
            raise ValueError(f"not a URL: {error}") from error
        if parts.scheme not in _PORTS or not parts.hostname or port == 0:
            raise ValueError(f"{_shown(parts)!r} is not mqtt://host:port or mqtts://host:port")
        if parts.username is not None or parts.password is not None:
            raise ValueError("the URL holds a user or password: write them as `user` and `password`")
        if parts.path.strip("/") or parts.query or parts.fragment:
            raise ValueError(f"{_shown(parts)!r} has more than host and port: write topics as `prefix`")
        return given

    @field_validator("prefix")
    @classmethod
    def _prefix(cls, given: str) -> str:
        require_prefix(given)
        return given

    @field_validator("client_id")
    @classmethod
    def _client_id(cls, given: str | None) -> str | None:
        if given is not None and (not given.isprintable() or not 0 < len(given.encode()) <= _MAX_CLIENT_ID_BYTES):
            raise ValueError("a client identifier has 1 to 65,535 printable bytes: leave it out for a new one")
        return given

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.changes and not self.transactions:
            raise ValueError("`changes` and `transactions` are both false: the sink would send nothing")
        if self.password is not None and self.user is None:
            raise ValueError("`password` without `user`")
        if self.tls is not None and not self.encrypted:
            raise ValueError("`tls` needs an mqtts:// URL")
        return self

    def secrets(self) -> Iterator[str]:
        yield from secrets_of(self.password, self.tls)

    @property
    def encrypted(self) -> bool:
        return urlsplit(self.url).scheme == "mqtts"

    @property
    def connection(self) -> MqttConnection:
        tls = (self.tls or TlsSettings()) if self.encrypted else None
        return MqttConnection(self.host, self.port, self.user, self.password, tls, self.keepalive_s, self.timeout_s)

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or _PORTS[parts.scheme]

    @property
    def address(self) -> str:
        return self.connection.address


def _shown(parts: SplitResult) -> str:
    """Returns the URL without user and password."""
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
