"""The groups of settings. Each stage's own group is defined beside the stage that it is for."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from psycopg.conninfo import make_conninfo
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from astha import strict_yaml
from astha.concealment import Concealment
from astha.daemon import DaemonSettings
from astha.errors import ConfigError
from astha.leadership import LeaseSettings
from astha.sources.opening import conninfo_of
from astha.sources.postgres.source import PostgresSourceSettings
from astha.sources.sqlite import TailSettings
from astha.subscribers.surroundings import LakeSettings
from registry.engines import StoreSettings, parse_url, shown
from registry.errors import Invalid

DEFAULT_REGISTRY = "sqlite:///registry.db"
PREFIX = "ASTHA_"

_SHORTEST_TOKEN = 16
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  (where to ask, not where to listen)
_STORE = StoreSettings()
_SECRET_PARAMETERS = ("password", "sslpassword")  # of libpq


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


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
        return StoreSettings(**self.model_dump(exclude={"url"}))

    def conninfo(self) -> str:
        """For libpq. Holds the password."""
        url = parse_url(self.url.get_secret_value())
        timeout = {} if "connect_timeout" in url.query else {"connect_timeout": self.connect_timeout_s}
        return make_conninfo(conninfo_of(url), **timeout)

    def secrets(self) -> Iterator[str]:
        url = parse_url(self.url.get_secret_value())
        if url.password:
            yield str(url.password)
        for name in _SECRET_PARAMETERS:
            value = url.query.get(name)
            if value:
                yield from (value,) if isinstance(value, str) else value


class ServerSettings(_Group):
    host: str = Field("127.0.0.1", description="Address to listen on; any other than a loopback one needs a token.")
    port: int = Field(9187, ge=0, le=65535, description="Port to listen on; 0 for any free one, which the log names.")
    token: SecretStr | None = Field(
        None, description="What a caller must present to refresh, pause, resume or watch events."
    )
    token_file: Path | None = Field(None, description="A file that holds the token instead.")
    stall_after_s: float = Field(
        20.0,
        gt=0,
        description="Not ready if the source is silent, or one and the same delivery tried, for so long.",
    )
    tail_buffer_events: int = Field(10_000, gt=0, description="What may wait for one slow reader of `astha tail`.")

    @field_validator("token")
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
        host = _ANYWHERE.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def secret(self) -> str | None:
        """The token, from wherever it is kept."""
        if self.token is not None:
            return self.token.get_secret_value()
        if self.token_file is None:
            return None
        token = strict_yaml.read_text(self.token_file).strip()
        try:
            _require_length(token)
        except ValueError as error:
            raise ConfigError(f"{self.token_file}: {error}") from error
        return token


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
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, validate_default=False
    )

    subscriptions: Path = Field(Path("subscriptions.yaml"), description="The file that says who gets what.")
    registry: RegistrySettings = RegistrySettings()
    source: PostgresSourceSettings = PostgresSourceSettings()
    change_log: TailSettings = TailSettings()
    lease: LeaseSettings = LeaseSettings()
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

    def concealment(self) -> Concealment:
        token = self.server.secret()
        return Concealment([*self.registry.secrets(), *self.lake.secrets(), *([token] if token else [])])
