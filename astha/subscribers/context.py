"""What a component finds around it when it is made: the registry, and where the lake's files and tables are."""

from __future__ import annotations

import msgspec
from pydantic import SecretStr

from astha.clock import LoopClock
from astha.clock_guard import ClockGuard
from astha.errors import ConfigError
from astha.redaction import Concealment
from astha.settings.lake import LakeSettings as LakeSettings
from astha.settings.lake import S3Settings as S3Settings
from registry.contract import MetadataStore


class Withheld(SecretStr):
    """Instead of the registry's URL, for a component that has not declared that it needs it."""

    def __init__(self) -> None:
        super().__init__("")

    def get_secret_value(self) -> str:
        raise ConfigError(
            "the registry's URL, which holds its credentials, is given only to a component that declares it: "
            "write `needs_registry_url = True` beside `create`, or use `context.store`"
        )


class ComponentContext(msgspec.Struct, frozen=True):
    store: MetadataStore
    clock: LoopClock
    registry_url: SecretStr
    lake: LakeSettings
    concealment: Concealment = msgspec.field(default_factory=Concealment)
    clock_guard: ClockGuard | None = None  # to be asked before anything is deleted by age

    def conceal(self, *secrets: str) -> None:
        """From now on they are masked in logs, errors and status. Call it with each secret among the component's
        settings in `create`, and with those that come up later as soon as they are known.
        """
        self.concealment.add(*secrets)

    def without_registry_url(self) -> ComponentContext:
        return msgspec.structs.replace(self, registry_url=Withheld())
