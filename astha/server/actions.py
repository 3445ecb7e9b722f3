"""Actions of operators. Each one is logged with its origin before it happens, and again if it is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from astha.clock import LoopClock
from astha.daemon import Daemon
from astha.lanes.inspection import shown_state
from astha.lanes.lane import Lane
from astha.lanes.state import LaneState
from astha.listener.link import Query
from astha.server.status import component_report
from astha.server.views import find_named
from astha.subscribers.operations import OffersOperations
from astha.tasks import cancel_and_wait
from registry.contract import MetadataStore
from registry.errors import RegistryError

log = structlog.get_logger(__name__)

COMPONENT_ACTIONS = ("refresh", "pause", "resume")
TABLE_ACTIONS = ("snapshot", "rollback", "compact", "cancel")
OPERATION_VIEWS = ("explain", "progress")
"""Operations that only read; they need no token for changes, and are not logged."""

_LEADER_TIMEOUT_S = 2.0


class Refusal(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Actions:
    def __init__(self, daemon: Daemon, store: MetadataStore, group: str, clock: LoopClock) -> None:
        self._daemon = daemon
        self._store = store
        self._group = group
        self._clock = clock
        self._lookup: asyncio.Task[str | None] | None = None

    async def close(self) -> None:
        if self._lookup is not None:
            await cancel_and_wait(self._lookup)

    async def leader(self) -> str | None:
        """Returns the leader, if it is another daemon and the registry responds in time.

        A late lookup goes on alone: to cancel a query of a registry that hangs takes longer than the caller may wait.
        """
        if self._daemon.leadership.leads:
            return None
        if self._lookup is None or self._lookup.done():
            self._lookup = asyncio.create_task(self._read_leader(), name="leader lookup")
        lookup = self._lookup
        done, _ = await asyncio.wait([lookup], timeout=_LEADER_TIMEOUT_S)
        return lookup.result() if done else None

    async def _read_leader(self) -> str | None:
        try:
            lease = await self._store.get_daemon_lease(self._group)
        except RegistryError:
            return None
        return lease.holder if lease is not None and lease.expires_at > self._clock.now_ms() else None

    async def idle(self) -> str | None:
        """Returns why this daemon has no events and takes no actions on components; None if it leads."""
        if self._daemon.leadership.leads:
            return None
        trouble = self._daemon.leadership.trouble
        if trouble is not None:
            return f"this daemon waits for the registry: {trouble}"
        return f"this daemon stands by; {await self.leader() or 'another one'} leads: ask that one"

    async def on_component(self, query: Query) -> Callable[[], object]:
        """Returns the report to show."""
        lane = await self._lane(query.component or "")
        if query.kind == "refresh" and lane.state is LaneState.PAUSED:
            raise Refusal(409, f"component {lane.name} is paused: resume it, which refreshes it too")
        _audit(query)
        match query.kind:
            case "refresh":
                lane.refresh("requested by an operator")
            case "pause":
                lane.pause()
            case _:
                lane.resume()
        return lambda: component_report(self._daemon, lane, self._clock)

    async def on_table(self, query: Query) -> object:
        """Raises what the registry or the component raises, after it was logged."""
        _audit(query)
        try:
            return await self._act_on_table(query)
        except Exception as error:
            log.warning("operator action refused", action=query.kind, table=query.table, reason=str(error))
            raise

    async def _act_on_table(self, query: Query) -> object:
        name, arguments = query.table or "", query.arguments
        table = await find_named(self._store, name)
        match query.kind:
            case "snapshot":
                tag = arguments.get("tag") or None
                reason = "requested over HTTP"
                return (await self._store.request_snapshot(table.id, tag=tag, reason=reason)).to_builtins()
            case "cancel":
                partition = arguments.get("partition")
                rows = await self._store.request_cancel(table.id, partition_path=partition)
                return {"cancelled": [row.to_builtins() for row in rows]}
        return await self.operate(query)

    async def operate(self, query: Query) -> object:
        """Lets the component that offers the operation perform it."""
        lane, operate = await self._operator(query.kind)
        if shown_state(lane) not in (LaneState.LIVE, LaneState.BROKEN):
            raise Refusal(409, f"component {lane.name} is {shown_state(lane)}: try again when it is live")
        return await operate(query.kind, query.table or "", query.arguments)

    async def _operator(self, operation: str) -> tuple[Lane, Callable[..., Awaitable[object]]]:
        for component in self._daemon.components:
            offered: object = component.subscriber
            if isinstance(offered, OffersOperations) and operation in offered.operations:
                return await self._lane(component.name), offered.operate
        raise Refusal(
            409,
            f"no component of this daemon offers {operation!r}: ask the leader of the group whose component does; "
            "`astha status --all` lists them",
        )

    async def _lane(self, name: str) -> Lane:
        lane = self._daemon.by_name.get(name)
        if lane is None:
            known = ", ".join(self._daemon.by_name) or "none: no component is subscribed"
            raise Refusal(404, f"there is no component {name!r}; there are {known}")
        idle = await self.idle()
        if idle is not None:
            raise Refusal(409, idle)
        return lane


def _audit(query: Query) -> None:
    subject = {"component": query.component} if query.table is None else {"table": query.table}
    given = {"arguments": query.arguments} if query.arguments else {}
    log.info("operator action", action=query.kind, **subject, **given, peer=query.peer, client=query.client)
