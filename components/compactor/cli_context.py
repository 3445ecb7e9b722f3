"""What the commands need: the registry and the component's settings, opened for one command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from astha.cli.exit_codes import Exit, Failure
from astha.cli.progress import progress
from astha.clock import LoopClock
from astha.errors import ConfigError
from astha.routing.subscriptions import read_subscriptions
from astha.settings import Settings
from astha.validation_errors import described
from components.lib.lake.lake_session import open_lake
from components.lib.lake.table_lookup import TableName, find_table
from registry.contract import MetadataStore
from registry.models import LakeTable

if TYPE_CHECKING:
    from components.compactor.settings import CompactorSettings

T = TypeVar("T")

COMPONENT = "compactor"


class CompactionCliContext:
    def __init__(self, settings: Settings, store: MetadataStore, clock: LoopClock) -> None:
        self.settings = settings
        self.store = store
        self.clock = clock

    async def table(self, name: str) -> LakeTable:
        return await find_table(self.store, name)

    async def table_id(self, name: str) -> int:
        """Also finds a dropped table, whose decisions are kept."""
        wanted = TableName.parse(name)
        table = await self.store.get_table(wanted.database, wanted.table)
        if table is not None:
            return table.id
        for row in await self.store.list_compactions():
            if row.table_name == str(wanted):
                return row.table_id
        return (await self.table(name)).id  # raises, with the way out

    def component_settings(self) -> CompactorSettings:
        """Returns the settings that the daemon uses."""
        from components.compactor.settings import CompactorSettings

        path = self.settings.subscriptions
        subscription = read_subscriptions(path).get(COMPONENT) if path.exists() else None
        try:
            return CompactorSettings.model_validate({} if subscription is None else dict(subscription.settings))
        except ValidationError as error:
            raise ConfigError(f"{path}: component {COMPONENT} refuses its settings: {described(error)}") from error


def run_with_context(settings: Settings, work: Callable[[CompactionCliContext], Awaitable[T]]) -> T:
    """Closes everything afterwards. Raises a `Failure` with `Exit.UNAVAILABLE` for what does not answer."""

    async def run() -> T:
        async with open_lake(settings) as lake:
            try:
                return await work(CompactionCliContext(lake.settings, lake.store, lake.clock))
            except Exception as error:
                raise _translated(error, settings) from error

    with progress("waiting for the registry", quiet=True):
        return asyncio.run(run())


def _translated(error: Exception, settings: Settings) -> Exception:
    from components.lib.lake.storage.objects import StorageUnavailable
    from components.lib.spark.errors import SparkError

    if isinstance(error, SparkError | StorageUnavailable):
        return Failure(settings.redactor()(str(error)), Exit.UNAVAILABLE)
    return error
