"""How to connect to a broker: the settings that sinks and sources share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from astha.settings.groups import SettingsGroup


class TlsSettings(SettingsGroup):
    ca: Path | None = Field(None, description="PEM file of the authorities to trust; null: the system's.")
    certificate: Path | None = Field(None, description="PEM file of the client certificate.")
    key: Path | None = Field(None, description="PEM file of the client certificate's key.")
    key_password: SecretStr | None = Field(None, description="Password of that key.")
    check_hostname: bool = Field(True, description="Whether the broker's certificate must be for its host name.")

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.certificate is None) is not (self.key is None):
            raise ValueError("set both `certificate` and `key`, or neither")
        return self


class SaslSettings(SettingsGroup):
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        "SCRAM-SHA-512", description="SASL mechanism."
    )
    user: str = Field(description="User name.")
    password: SecretStr = Field(description="Password.")


def secrets_of(*settings: TlsSettings | SaslSettings | SecretStr | None) -> Iterator[str]:
    """Returns the values that must not be shown."""
    for each in settings:
        if isinstance(each, SaslSettings):
            each = each.password
        elif isinstance(each, TlsSettings):
            each = each.key_password
        if each is not None:
            yield each.get_secret_value()
