"""The registry's settings. They load SQLAlchemy and psycopg when these are needed: `astha status` needs neither."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pydantic import Field, SecretStr, field_validator

from astha.file_modes import FileMode, mode_of
from astha.settings.groups import SettingsGroup
from registry.errors import Invalid

if TYPE_CHECKING:
    from sqlalchemy import URL

    from registry.engines import StoreSettings

DEFAULT_REGISTRY = "sqlite:///registry.db"

_PLAIN_URL = re.compile(
    r"sqlite:///[\w./-]*\w"
    r"|postgres(?:ql)?://(?:[\w.-]+(?::(?P<password>[\w.~%-]+))?@)?[\w.-]+(?::[0-9]{1,5})?/[\w-]+",
    re.ASCII,
)
"""URLs that are valid without asking SQLAlchemy and libpq: nothing to escape, no parameters."""


class RegistrySettings(SettingsGroup):
    """The defaults of the numbers are those of `registry.engines.StoreSettings`."""

    url: SecretStr = Field(
        SecretStr(DEFAULT_REGISTRY),
        description="The registry: sqlite:///file.db, postgresql://user@host/database or cockroachdb://user@host/"
        "database with any libpq parameters, or dynamodb://REGION/TABLE.",
    )
    pool_size: int = Field(10, gt=0, description="Connections kept open.")
    pool_overflow: int = Field(10, ge=0, description="Further connections, opened under load.")
    pool_timeout_s: float = Field(10.0, gt=0, description="Longest wait for a free connection.")
    connect_timeout_s: int = Field(10, gt=0, description="Longest wait for a connection to the server.")
    statement_timeout_s: float = Field(30.0, ge=0, description="Longest statement on a server; 0 for no limit.")
    busy_timeout_s: float = Field(
        30.0, ge=0, description="On SQLite and CockroachDB, the longest wait for another process's write."
    )
    read_units: int | None = Field(
        None, gt=0, description="On DynamoDB, the provisioned read capacity of a new table; empty: on demand."
    )
    write_units: int | None = Field(None, gt=0, description="The same for writes.")
    file_mode: FileMode = Field(
        "0600",
        description="On SQLite, the mode of a new registry's file; an existing file keeps its mode.",
    )

    @field_validator("url")
    @classmethod
    def _known_backend(cls, url: SecretStr) -> SecretStr:
        if _PLAIN_URL.fullmatch(url.get_secret_value()) is None:
            try:
                _parse(url.get_secret_value())
            except Invalid as error:
                raise ValueError(str(error)) from None  # its text shows no password, its cause may
        return url

    @property
    def backend(self) -> str:
        """``sqlite``, ``postgresql``, ``cockroachdb`` or ``dynamodb``."""
        return _parse(self.url.get_secret_value()).drivername

    @property
    def is_postgres(self) -> bool:
        return self.backend == "postgresql"

    @property
    def is_file(self) -> bool:
        return self.backend == "sqlite"

    @property
    def shown(self) -> str:
        """The URL for people: without its password."""
        from registry.engines import display_url

        return display_url(_parse(self.url.get_secret_value()))

    @property
    def store(self) -> StoreSettings:
        from registry.engines import StoreSettings

        return StoreSettings(**self.model_dump(exclude={"url", "file_mode"}), file_mode=mode_of(self.file_mode))

    def conninfo(self) -> str:
        """Returns libpq's connection string, with the password."""
        from psycopg.conninfo import make_conninfo

        url = _parse(self.url.get_secret_value())
        timeout = {} if "connect_timeout" in url.query else {"connect_timeout": self.connect_timeout_s}
        return make_conninfo(conninfo_of(url), **timeout)

    def secrets(self) -> Iterator[str]:
        text = self.url.get_secret_value()
        plain = _PLAIN_URL.fullmatch(text)
        if plain is None:
            from registry.engines import url_secrets

            yield from url_secrets(text)
        elif plain["password"]:
            yield unquote(plain["password"])


def conninfo_of(url: URL) -> str:
    """Returns libpq's connection string for the URL, read by SQLAlchemy: libpq rejects some URLs that it renders."""
    from psycopg.conninfo import make_conninfo

    url = url.set(drivername="postgresql+psycopg")
    _, parameters = url.get_dialect()().create_connect_args(url)
    return make_conninfo(**parameters)


def _parse(text: str) -> URL:
    from registry.engines import parse_url

    return parse_url(text)
