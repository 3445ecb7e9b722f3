"""The settings of the daemon's HTTP server, and of the commands that call it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator

from astha.settings.http import HttpSettings, split_names


class ServerSettings(HttpSettings):
    token: SecretStr | None = Field(
        None, description="The token for requests that change something; it also allows reading."
    )
    read_token: SecretStr | None = Field(
        None, description="The token that only allows reading status, metrics, events and the dashboard's data."
    )
    open_paths: tuple[Literal["status", "metrics", "events"], ...] = Field(
        (), description="Paths that need no token although one is set: any of status, metrics, events."
    )
    tls_ca_file: Path | None = Field(
        None, description="For commands that call a daemon: trust these certificate authorities, not the system's."
    )
    max_watchers: int = Field(256, gt=0, description="Limit of clients that stream events; others are refused.")
    max_dashboards: int = Field(32, gt=0, description="Limit of dashboards with live data; others are refused.")
    stall_after_s: float = Field(
        20.0,
        gt=0,
        description="Not ready if the source is silent, or one delivery is retried, for longer.",
    )
    tail_buffer_events: int = Field(10_000, gt=0, description="Events buffered for one slow reader of `astha tail`.")
    tail_buffer_bytes: int = Field(
        4 * 1024 * 1024,
        ge=64 * 1024,
        description="Bytes buffered for one slow reader of `astha tail`; for all readers together, 16 times as many.",
    )

    @field_validator("open_paths", mode="before")
    @classmethod
    def _split_paths(cls, value: object) -> object:
        return split_names(value)
