"""The groups of settings. Each stage's own group is defined beside the stage that it is for."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from psycopg.conninfo import make_conninfo
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from astha import strict_yaml
from astha.clock_guard import ClockSettings
from astha.daemon import DaemonSettings
from astha.errors import ConfigError
from astha.file_modes import FileMode, mode_of
from astha.leadership import LeaseSettings
from astha.redaction import Concealment
from astha.sources.factory import conninfo_of
from astha.sources.postgres.source import PostgresSourceSettings
from astha.sources.sqlite import TailSettings
from astha.subscribers.context import LakeSettings
from registry.engines import StoreSettings, parse_url, shown, url_secrets
from registry.errors import Invalid

DEFAULT_REGISTRY = "sqlite:///registry.db"
PREFIX = "ASTHA_"

_SHORTEST_TOKEN = 16
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  (where to ask, not where to listen)
_STORE = StoreSettings()


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class RegistrySettings(_Group):
    url: SecretStr = Field(
        SecretStr(DEFAULT_REGISTRY),
        description="The registry: sqlite:///file.db or postgresql://user@host/database, with any libpq parameters.",
    )
    pool_size: int = Field(_STORE.pool_size, gt=0, description="Connections kept open.")
    pool_overflow: int = Field(_STORE.pool_overflow, ge=0, description="Connections beyond those, when it gets busy.")
    pool_timeout_s: float = Field(_STORE.pool_timeout_s, gt=0, description="Longest wait for a free connection.")
    connect_timeout_s: int = Field(_STORE.connect_timeout_s, gt=0, description="Longest wait for the server to answer.")
    statement_timeout_s: float = Field(
        _STORE.statement_timeout_s, ge=0, description="Longest statement on PostgreSQL; 0 for no limit."
    )
    busy_timeout_s: float = Field(
        _STORE.busy_timeout_s, ge=0, description="On SQLite, the longest wait for another process's write."
    )

    file_mode: FileMode = Field(
        "0600",
        description="On SQLite, the mode of a new registry's file; an existing one keeps its own.",
    )

    @field_validator("url")
    @classmethod
    def _known_backend(cls, url: SecretStr) -> SecretStr:
        try:
            parse_url(url.get_secret_value())
        except Invalid as error:
            raise ValueError(str(error)) from None  # it shows no password, its cause may
        return url

    @property
    def is_postgres(self) -> bool:
        return parse_url(self.url.get_secret_value()).drivername == "postgresql"

    @property
    def shown(self) -> str:
        """The URL for people: without its password."""
        return shown(parse_url(self.url.get_secret_value()))

    @property
    def store(self) -> StoreSettings:
        return StoreSettings(**self.model_dump(exclude={"url", "file_mode"}), file_mode=mode_of(self.file_mode))

    def conninfo(self) -> str:
        """For libpq. Holds the password."""
        url = parse_url(self.url.get_secret_value())
        timeout = {} if "connect_timeout" in url.query else {"connect_timeout": self.connect_timeout_s}
        return make_conninfo(conninfo_of(url), **timeout)

    def secrets(self) -> Iterator[str]:
        yield from url_secrets(self.url.get_secret_value())


class ServerSettings(_Group):
    host: str = Field("127.0.0.1", description="Address to listen on; any other than a loopback one needs a token.")
    port: int = Field(27840, ge=0, le=65535, description="Port to listen on; 0 for any free one, which the log names.")
    token: SecretStr | None = Field(
        None, description="What a caller must present to refresh, pause or resume; it may also read."
    )
    token_file: Path | None = Field(None, description="A file that holds the token instead.")
    read_token: SecretStr | None = Field(
        None, description="What a caller may present instead to read status, metrics and events, and nothing else."
    )
    read_token_file: Path | None = Field(None, description="A file that holds the read token instead.")
    open_paths: tuple[Literal["status", "metrics", "events"], ...] = Field(
        (), description="What is shown without a token although one is set: any of status, metrics, events."
    )
    allowed_hosts: tuple[str, ...] = Field(
        (),
        description="Names beside server.host and loopback ones that a request's Host may have; `*` for any.",
    )
    tls_certificate_file: Path | None = Field(None, description="Serve HTTPS with this certificate chain (PEM).")
    tls_key_file: Path | None = Field(None, description="The certificate's key (PEM, not encrypted).")
    tls_ca_file: Path | None = Field(
        None, description="For commands that ask a daemon: trust certificates of these authorities, not the system's."
    )
    max_connections: int = Field(512, gt=0, description="Connections open at once; beyond, the idlest is closed.")
    max_watchers: int = Field(256, gt=0, description="Readers of events at once; beyond, they are refused.")
    header_timeout_s: float = Field(10.0, gt=0, description="Time for a handshake and a connection's first request.")
    keepalive_timeout_s: float = Field(75.0, gt=0, description="Time for each further request of a connection.")
    stall_after_s: float = Field(
        20.0,
        gt=0,
        description="Not ready if the source is silent, or one and the same delivery tried, for so long.",
    )
    tail_buffer_events: int = Field(10_000, gt=0, description="What may wait for one slow reader of `astha tail`.")
    tail_buffer_bytes: int = Field(
        4 * 1024 * 1024,
        ge=64 * 1024,
        description="Bytes that may wait for one slow reader of `astha tail`; for all readers, 16 times as many.",
    )

    @field_validator("open_paths", "allowed_hosts", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        """On a command line, names with commas between them."""
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("token", "read_token")
    @classmethod
    def _long_enough(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None:
            _require_length(token.get_secret_value())
        return token

    @property
    def loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def url(self) -> str:
        """Where to ask, from this machine."""
        return self.url_of(_ANYWHERE.get(self.host, self.host), self.port)

    def url_of(self, host: str, port: int) -> str:
        scheme = "http" if self.tls_certificate_file is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def secret(self) -> str | None:
        """The token, from wherever it is kept."""
        return _kept(self.token, self.token_file)

    def read_secret(self) -> str | None:
        """The read token, from wherever it is kept."""
        return _kept(self.read_token, self.read_token_file)

    def secrets(self) -> list[str]:
        return [token for token in (self.secret(), self.read_secret()) if token]


def _kept(token: SecretStr | None, path: Path | None) -> str | None:
    if token is not None:
        return token.get_secret_value()
    if path is None:
        return None
    found = strict_yaml.read_text(path).strip()
    try:
        _require_length(found)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    return found


def _require_length(token: str) -> None:
    if len(token) < _SHORTEST_TOKEN:
        raise ValueError(f"a token has at least {_SHORTEST_TOKEN} characters")


class LogSettings(_Group):
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="What is worth a line; read again on SIGHUP."
    )
    format: Literal["console", "json"] = Field("console", description="Lines for people, or JSON for machines.")


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        validate_default=False,
        hide_input_in_errors=True,
    )

    subscriptions: Path = Field(Path("subscriptions.yaml"), description="The file that says who gets what.")
    registry: RegistrySettings = RegistrySettings()
    source: PostgresSourceSettings = PostgresSourceSettings()
    change_log: TailSettings = TailSettings()
    lease: LeaseSettings = LeaseSettings()
    clock: ClockSettings = ClockSettings()
    daemon: DaemonSettings = DaemonSettings()
    server: ServerSettings = ServerSettings()
    log: LogSettings = LogSettings()
    lake: LakeSettings = LakeSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)  # `load_settings` has put everything together

    _concealment: Concealment | None = PrivateAttr(None)

    def concealment(self) -> Concealment:
        """One for everything that is made with these settings. Components add their own secrets to it."""
        if self._concealment is None:
            secrets = [*self.registry.secrets(), *self.lake.secrets(), *self.server.secrets()]
            self._concealment = Concealment(secrets)
        return self._concealment
