"""All settings: one group for each stage."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, PrivateAttr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from astha.redaction import Redactor
from astha.settings.groups import (
    ClockSettings,
    DaemonSettings,
    LeaseSettings,
    LogSettings,
    PostgresSourceSettings,
    TailSettings,
)
from astha.settings.lake import LakeSettings
from astha.settings.registry import RegistrySettings
from astha.settings.server import ServerSettings

PREFIX = "ASTHA_"


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        validate_default=False,
        hide_input_in_errors=True,
    )

    subscriptions: Path = Field(
        Path("subscriptions.yaml"), description="The file that lists components and the tables that each one receives."
    )
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
        return (init_settings,)  # `load_settings` has merged all sources

    _redactor: Redactor | None = PrivateAttr(None)

    def redactor(self) -> Redactor:
        """Returns the one redactor of these settings. Components add their own secrets to it."""
        if self._redactor is None:
            secrets = [*self.registry.secrets(), *self.lake.secrets(), *self.server.secrets()]
            self._redactor = Redactor(secrets)
        return self._redactor
