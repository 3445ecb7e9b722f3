"""The settings of a daemon's source: the registry itself, or the transaction stream of another daemon."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self
from urllib.parse import unquote, urlsplit

import msgspec
from pydantic import Field, SecretStr, field_validator, model_validator

from astha.settings.brokers import SaslSettings, TlsSettings, secrets_of
from astha.settings.groups import PostgresSourceSettings, SettingsGroup

_DEFAULT_PORTS = {"kafka": 9092, "mqtt": 1883, "mqtts": 8883}


class StreamAddress(msgspec.Struct, frozen=True):
    """What a URL such as ``kafka://host:9092,other:9092/TOPIC`` or ``mqtt://user:password@host/PREFIX`` says."""

    transport: Literal["kafka", "mqtt"]
    servers: tuple[tuple[str, int], ...]
    name: str  # the topic, or the prefix of topics
    user: str | None
    password: str | None
    tls: bool = False  # as the scheme mqtts says

    @property
    def shown(self) -> str:
        """The address for people: without user and password."""
        return f"{self.transport}://{','.join(self.hosts)}/{self.name}"

    @property
    def hosts(self) -> list[str]:
        return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.servers]


def parse_stream_url(url: str) -> StreamAddress:
    """Raises ValueError, which shows neither user nor password."""
    parts = urlsplit(url)
    if parts.scheme not in _DEFAULT_PORTS:
        raise ValueError(
            "a source's URL begins with kafka://, mqtt:// or mqtts://; leave it out to read the registry itself"
        )
    userinfo, _, hosts = parts.netloc.rpartition("@")
    user, _, password = userinfo.partition(":")
    name = unquote(parts.path).strip("/")
    if not name:
        what = "the topic: kafka://host:9092/TOPIC" if parts.scheme == "kafka" else "the prefix: mqtt://host/PREFIX"
        raise ValueError(f"the source's URL lacks {what}")
    if parts.query or parts.fragment:
        raise ValueError("a source's URL has no parameters: set source.kafka or source.mqtt instead")
    if parts.scheme != "kafka" and ("#" in url or set("+#") & set(name)):
        raise ValueError("the prefix in the source's URL must not contain the wildcards + and #")
    servers = tuple(_server(host, _DEFAULT_PORTS[parts.scheme]) for host in hosts.split(","))
    if parts.scheme != "kafka" and len(servers) > 1:
        raise ValueError("a source's mqtt:// URL names one server")
    transport: Literal["kafka", "mqtt"] = "kafka" if parts.scheme == "kafka" else "mqtt"
    tls = parts.scheme == "mqtts"
    return StreamAddress(transport, servers, name, unquote(user) or None, unquote(password) or None, tls)


def _server(text: str, default_port: int) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text.strip()}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.path:
        raise ValueError("the source's URL has a server that is not host:port")
    return host, port or default_port


class KafkaSourceSettings(SettingsGroup):
    """How a follower connects to Kafka."""

    tls: TlsSettings | None = Field(None, description="Use TLS, with the settings below; `{}` suffices.")
    sasl: SaslSettings | None = Field(
        None,
        description="Authenticate with a user name and password. Those in the URL are for SCRAM-SHA-512.",
    )
    connect_timeout_s: float = Field(10.0, gt=0, description="Time to connect.")
    fetch_max_bytes: int = Field(4 * 1024 * 1024, ge=65_536, description="Bytes per fetch.")
    request_timeout_s: float = Field(10.0, gt=1, description="A request without a response by then has failed.")


class MqttSourceSettings(SettingsGroup):
    """How a follower connects to an MQTT broker."""

    user: str | None = Field(None, description="User name; may also be part of the URL.")
    password: SecretStr | None = Field(None, description="Password; may also be part of the URL.")
    tls: TlsSettings | None = Field(None, description="Settings of TLS, which an mqtts:// URL uses.")
    connect_timeout_s: float = Field(10.0, gt=0, description="Time to connect.")
    keepalive_s: int = Field(10, gt=0, le=65_535, description="A silent connection is checked after this time.")
    max_queued: int = Field(
        20_000, gt=0, description="Messages that may wait here; more are dropped, and components refresh."
    )
    max_queued_bytes: int = Field(64 * 1024 * 1024, gt=0, description="The same, in bytes.")


class SourceSettings(PostgresSourceSettings):
    """Without a URL the source is the registry itself. The other settings of this group are for PostgreSQL."""

    url: SecretStr | None = Field(
        None,
        description="Follow the transaction stream of another daemon: kafka://host:9092/TOPIC or mqtt://host/PREFIX. "
        "Empty for the registry itself.",
    )
    kafka: KafkaSourceSettings = KafkaSourceSettings()
    mqtt: MqttSourceSettings = MqttSourceSettings()

    @field_validator("url")
    @classmethod
    def _known_transport(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            parse_stream_url(url.get_secret_value())
        return url

    @model_validator(mode="after")
    def _one_login(self) -> Self:
        address = self.address
        if address is None:
            return self
        if address.transport == "mqtt":
            login, known = "source.mqtt.user", self.mqtt.user is not None
        else:
            login, known = "source.kafka.sasl", self.kafka.sasl is not None
        if address.user is not None and known:
            raise ValueError(f"the URL has a user, and {login} is set: keep one of them")
        if address.transport == "mqtt" and self.mqtt.tls is not None and not address.tls:
            raise ValueError("source.mqtt.tls needs an mqtts:// URL")
        return self

    @property
    def address(self) -> StreamAddress | None:
        return None if self.url is None else parse_stream_url(self.url.get_secret_value())

    def secrets(self) -> Iterator[str]:
        if self.address is not None and self.address.password is not None:
            yield self.address.password
        yield from secrets_of(self.kafka.sasl, self.kafka.tls, self.mqtt.password, self.mqtt.tls)
