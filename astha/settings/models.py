"""All settings: one group for each stage."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, PrivateAttr, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from astha.redaction import Redactor
from astha.settings.catalog import CatalogSettings
from astha.settings.groups import (
    ClockSettings,
    DaemonSettings,
    LeaseSettings,
    LogSettings,
    TailSettings,
)
from astha.settings.lake import LakeSettings
from astha.settings.registry import RegistrySettings
from astha.settings.server import ServerSettings
from astha.settings.source import SourceSettings
from astha.settings.tracing import TracingSettings

PREFIX = "ASTHA_"
DEFAULT_GROUP = "astha"


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
    group: str = Field(
        DEFAULT_GROUP,
        pattern="^[a-z][a-z0-9_]{0,49}$",
        description="Of the daemons of one group, one leads and the others stand by. Each group has its own components "
        "and its own positions.",
    )
    registry: RegistrySettings = RegistrySettings()
    source: SourceSettings = SourceSettings()
    change_log: TailSettings = TailSettings()
    lease: LeaseSettings = LeaseSettings()
    clock: ClockSettings = ClockSettings()
    daemon: DaemonSettings = DaemonSettings()
    server: ServerSettings = ServerSettings()
    log: LogSettings = LogSettings()
    tracing: TracingSettings = TracingSettings()
    lake: LakeSettings = LakeSettings()
    catalog: CatalogSettings = CatalogSettings()

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

    @model_validator(mode="after")
    def _slot_of_the_group(self) -> Self:
        """Two groups that shared a slot would take changes from each other."""
        if self.group != DEFAULT_GROUP and "slot" not in self.source.model_fields_set:
            slot = f"{DEFAULT_GROUP}_{self.group}"
            self.__dict__["source"] = self.source.model_copy(update={"slot": slot})  # frozen, but not yet in use
        return self

    _redactor: Redactor | None = PrivateAttr(None)

    def redactor(self) -> Redactor:
        """Returns the one redactor of these settings. Components add their own secrets to it."""
        if self._redactor is None:
            groups = (self.registry, self.lake, self.server, self.catalog, self.source, self.tracing)
            secrets = [secret for group in groups for secret in group.secrets()]
            self._redactor = Redactor(secrets)
        return self._redactor
