"""The settings of the Iceberg REST catalog, `astha catalog`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self, TypeAlias

from pydantic import Field, SecretStr, field_validator, model_validator

from astha import strict_yaml
from astha.errors import ConfigError
from astha.settings.groups import SettingsGroup
from astha.settings.http import HttpSettings

Right: TypeAlias = Literal["read", "write"]

EVERYTHING = "*"
"""In grants: every namespace."""

_SHORTEST_SECRET = 16
_SHORTEST_KEY = 32
_CLIENT_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ClientSettings(SettingsGroup):
    """A client that logs in with its name and a secret."""

    secret: SecretStr | None = Field(None, description="The client's secret.")
    secret_file: Path | None = Field(None, description="A file with the secret, instead of `secret`.")
    grants: dict[str, Right] = Field(
        {}, description="Namespace, or `*` for all: read or write. It covers the namespaces below; write includes read."
    )

    @model_validator(mode="after")
    def _one_secret(self) -> Self:
        if (self.secret is None) is (self.secret_file is None):
            raise ValueError("set either `secret` or `secret_file`")
        if self.secret is not None:
            _require_length(self.secret.get_secret_value(), _SHORTEST_SECRET, "a client's secret")
        return self

    @field_validator("grants")
    @classmethod
    def _namespaces(cls, grants: dict[str, Right]) -> dict[str, Right]:
        for name in grants:
            if name != EVERYTHING and ("*" in name or not all(name.split("."))):
                raise ValueError(f"{name!r} is no namespace: write levels with dots, such as `eu.shop`, or only `*`")
        return grants

    def secret_text(self) -> str:
        """Returns the secret, from the setting or the file."""
        return _secret(self.secret, self.secret_file, _SHORTEST_SECRET, "a client's secret") or ""


class CatalogSettings(HttpSettings):
    port: int = Field(27841, ge=0, le=65535, description="Port to listen on; 0 for any free one, which is logged.")
    clients: dict[str, ClientSettings] = Field(
        {},
        description="Clients that log in with OAuth2 client credentials: name -> `secret` or `secret_file`, and "
        "`grants`, namespace or `*` -> read or write.",
    )
    token_key: SecretStr | None = Field(
        None,
        description="The key that signs the tokens of clients; the same for all catalog processes. Empty: a random one "
        "for this process, whose tokens no other one accepts.",
    )
    token_key_file: Path | None = Field(None, description="A file with that key, instead of `token_key`.")
    token_lifetime_s: int = Field(
        900, ge=60, le=86_400, description="Time until a client must ask for another token, with its secret."
    )
    vend_credentials: bool = Field(
        False, description="Give every client that may read a table the credentials of lake.s3, to read its files with."
    )
    metadata_cache_bytes: int = Field(
        256 * 1024 * 1024, ge=0, description="Metadata files kept in memory, so that a table is loaded without storage."
    )
    concurrent_commits: int = Field(
        16, ge=1, description="Commits that are worked on at once; others wait, those to one table in their order."
    )
    max_bodies_bytes: int = Field(
        256 * 1024 * 1024,
        ge=1,
        description="Bytes of all request bodies that are in memory at once; a request that finds no room within ten "
        "seconds gets 503.",
    )

    @field_validator("clients", mode="before")
    @classmethod
    def _secret_files(cls, clients: object) -> object:
        """Moves the secret of a file named `catalog.clients.NAME.secret` to its client."""
        if not isinstance(clients, Mapping):
            return clients
        found = {name: client for name, client in clients.items() if not _names_secret(name, client)}
        for name, secret in clients.items():
            if _names_secret(name, secret):
                client = found.get(name.removesuffix(".secret"), {})
                found[name.removesuffix(".secret")] = (
                    {**client, "secret": secret} if isinstance(client, Mapping) else client
                )
        return found

    @field_validator("clients")
    @classmethod
    def _client_names(cls, clients: dict[str, ClientSettings]) -> dict[str, ClientSettings]:
        for name in clients:
            if not _CLIENT_NAME.fullmatch(name):
                raise ValueError(f"{name[:100]!r} is no name of a client: use at most 64 of A-Z a-z 0-9 _ -")
        return clients

    @field_validator("token_key")
    @classmethod
    def _long_key(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None:
            _require_length(key.get_secret_value(), _SHORTEST_KEY, "the key")
        return key

    @property
    def requires_login(self) -> bool:
        return bool(self.clients) or super().requires_login

    def signing_key(self) -> str | None:
        """Returns the key, from the setting or the file."""
        return _secret(self.token_key, self.token_key_file, _SHORTEST_KEY, "the key")

    def secrets(self) -> list[str]:
        key = self.signing_key()
        return [
            *super().secrets(),
            *([] if key is None else [key]),
            *(client.secret_text() for client in self.clients.values()),
        ]


def _names_secret(name: object, value: object) -> bool:
    return isinstance(name, str) and isinstance(value, str) and name.endswith(".secret")


def _secret(value: SecretStr | None, path: Path | None, shortest: int, what: str) -> str | None:
    if value is not None:
        return value.get_secret_value()
    if path is None:
        return None
    found = strict_yaml.read_text(path).strip()
    try:
        _require_length(found, shortest, what)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    return found


def _require_length(text: str, shortest: int, what: str) -> None:
    if len(text) < shortest:
        raise ValueError(f"{what} must have at least {shortest} characters")
