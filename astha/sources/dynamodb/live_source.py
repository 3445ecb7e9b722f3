"""`DynamoLiveSource`: the commit log from now on, for a process that keeps caches up to date."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import structlog

from astha.backoff import Backoff
from astha.clock import LoopClock
from astha.settings.groups import TailSettings
from astha.sources.contract import Batch, Gap, Started
from astha.sources.dynamodb.decode import EntryDecoder
from astha.sources.dynamodb.log_follower import LogFollower
from astha.sources.limits import TransactionLimits
from astha.tasks import to_completion
from registry.dynamodb_url import parse_endpoint
from registry.errors import RegistryError
from registry.position import Position
from registry.stores.dynamodb.client import DynamoClient
from registry.stores.dynamodb.commit_log import CommitLog, LogBroken, Mark

log = structlog.get_logger(__name__)

_RETRY = Backoff(initial_s=0.2, max_s=5.0)


class DynamoLiveSource:
    def __init__(self, url: str, limits: TransactionLimits, settings: TailSettings, clock: LoopClock) -> None:
        self._endpoint = parse_endpoint(url)
        self._limits = limits
        self._settings = settings
        self._clock = clock

    async def stream(self, tables: frozenset[str]) -> AsyncGenerator[Batch, None]:
        decoder = EntryDecoder(tables, self._limits)
        client = DynamoClient(self._endpoint)
        commit_log = CommitLog(client)
        follower = LogFollower(commit_log, decoder, self._clock, self._settings.poll_s)
        gap = "the live source starts"
        try:
            while True:
                yield Gap(gap)
                mark = await self._end(commit_log)
                yield Started(Position(mark.sequence))
                try:
                    async with aclosing(follower.follow(mark)) as followed:
                        async for batch, _ in followed:
                            yield batch
                except LogBroken as broken:
                    gap = str(broken)
        finally:
            await to_completion(client.close())

    async def _end(self, commit_log: CommitLog) -> Mark:
        failures = 0
        while True:
            try:
                return await commit_log.end()
            except RegistryError as error:
                failures += 1
                log.warning("registry can't be read, retrying", error=str(error))
                await self._clock.sleep(_RETRY.wait_s(failures, self._clock))
