"""The settings of an HTTP server: address, tokens, TLS, limits of connections."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

from pydantic import Field, SecretStr, field_validator

from astha import strict_yaml
from astha.errors import ConfigError
from astha.settings.groups import SettingsGroup

_SHORTEST_TOKEN = 16
_LOCAL_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  (the address to call, not the one to listen on)


class HttpSettings(SettingsGroup):
    host: str = Field("127.0.0.1", description="Address to listen on; any but a loopback address requires a token.")
    port: int = Field(27840, ge=0, le=65535, description="Port to listen on; 0 for any free one, which is logged.")
    token: SecretStr | None = Field(
        None, description="The token for requests that change something; it also allows reading."
    )
    token_file: Path | None = Field(None, description="A file with the token, instead of `token`.")
    read_token: SecretStr | None = Field(None, description="The token that only allows reading.")
    read_token_file: Path | None = Field(None, description="A file with the read token, instead of `read_token`.")
    allowed_hosts: tuple[str, ...] = Field(
        (), description="Accepted Host headers, beside `host` and loopback names; `*` for any."
    )
    tls_certificate_file: Path | None = Field(None, description="Serve HTTPS with this certificate chain (PEM).")
    tls_key_file: Path | None = Field(None, description="The certificate's key (PEM, not encrypted).")
    max_connections: int = Field(
        512, gt=0, description="Limit of connections; beyond it, the longest idle one is closed."
    )
    header_timeout_s: float = Field(10.0, gt=0, description="Time limit for the handshake and the first request.")
    keepalive_timeout_s: float = Field(75.0, gt=0, description="Time limit for each further request of a connection.")

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _split_hosts(cls, value: object) -> object:
        return split_names(value)

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
        """The URL for calls from this machine."""
        return self.url_of(_LOCAL_ADDRESS.get(self.host, self.host), self.port)

    def url_of(self, host: str, port: int) -> str:
        scheme = "http" if self.tls_certificate_file is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    @property
    def requires_login(self) -> bool:
        """Whether a request must prove who sends it; else every local user has access."""
        return self.secret() is not None or self.read_secret() is not None

    def secret(self) -> str | None:
        """Returns the token, from the setting or the file."""
        return _token(self.token, self.token_file)

    def read_secret(self) -> str | None:
        """Returns the read token, from the setting or the file."""
        return _token(self.read_token, self.read_token_file)

    def secrets(self) -> list[str]:
        return [token for token in (self.secret(), self.read_secret()) if token]


def _token(token: SecretStr | None, path: Path | None) -> str | None:
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
        raise ValueError(f"a token must have at least {_SHORTEST_TOKEN} characters")


def split_names(value: object) -> object:
    """Splits comma-separated names from a command line."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
