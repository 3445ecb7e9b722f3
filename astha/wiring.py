"""Builds a daemon from settings, and validates them before anything starts."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import structlog

from astha.change_log_claim import ChangeLogClaim
from astha.clock import LoopClock
from astha.clock_guard import ClockGuard
from astha.daemon import Daemon, NamedSubscriber
from astha.errors import ComponentError, ConfigError
from astha.lake_locations import located
from astha.leader_lock import LeaderLock, lock_directory
from astha.leadership import Leadership
from astha.presence import Presence
from astha.redaction import secrets_in
from astha.routing.subscriptions import Subscription, read_subscriptions, require_match
from astha.settings import Settings
from astha.settings.models import DEFAULT_GROUP
from astha.sources.contract import Source
from astha.sources.factory import open_follower, open_source
from astha.subscribers.broken import BrokenComponent
from astha.subscribers.context import ComponentContext, ComponentState
from astha.subscribers.contract import Subscriber, is_durable
from astha.subscribers.loader import load_component
from astha.tracing import NOT_TRACED, Tracing
from astha.tracing.factory import open_tracing
from astha.version import version
from registry.connect import Stores, open_stores, require_schema
from registry.contract import MetadataStore
from registry.engines import display_url, parse_url
from registry.errors import PermissionDenied, ReadOnly
from registry.json_text import to_json_text
from registry.models import RunningDaemon

log = structlog.get_logger(__name__)


class AssembledDaemon(msgspec.Struct, frozen=True):
    daemon: Daemon
    stores: Stores
    holder: str
    tracing: Tracing | None = None

    @property
    def store(self) -> MetadataStore:
        return self.stores.main


async def assemble(settings: Settings, clock: LoopClock) -> AssembledDaemon:
    """Raises ConfigError, SchemaMismatch or Unavailable; then nothing is left open."""
    subscriptions = selected(read_subscriptions(settings.subscriptions), settings)
    url = settings.registry.url.get_secret_value()
    stores = await open_stores(url, settings=settings.registry.store, clock=clock)
    store, reserved = stores.main, stores.reserved
    tracing: Tracing | None = None
    try:
        settings = await _with_lake_locations(settings, store)
        holder = _holder()
        tracing = _tracing(settings, holder, clock)
        guard = ClockGuard(clock, settings.clock, store.time)
        await guard.begin()  # before the lease records this process's time
        states: list[Callable[[], Sequence[ComponentState]]] = []  # the daemon's, once there is one
        component_context = msgspec.structs.replace(
            context(settings, store, clock),
            clock_guard=guard,
            group=settings.group,
            component_states=lambda: states[0]() if states else (),
            tracer=tracing or NOT_TRACED,
        )
        found = load_components(subscriptions, component_context, settings.subscriptions)
        components = usable(found, run_others=settings.daemon.on_bad_component == "run_others")
        lock = _leader_lock(settings, holder)
        leadership = Leadership(reserved, settings.lease, holder, clock, settings.group, lock)
        source = _source(settings, reserved, clock)
        same_schema = partial(require_schema, url, settings.registry.store)
        daemon = Daemon(store, source, components, leadership, settings.daemon, clock, same_schema, reserved, tracing)
        daemon.clock_guard = guard
        daemon.presence = Presence(
            reserved, leadership, _process(settings, holder, components, clock), clock, guard.steady
        )
        if source_kind(settings) == "sqlite":
            daemon.change_log_claim = ChangeLogClaim(reserved, settings.group, settings.lease.ttl_s, clock)
        states.append(daemon.component_states)
    except BaseException:
        if tracing is not None:
            await tracing.close()
        await stores.close()
        raise
    return AssembledDaemon(daemon, stores, holder, tracing)


async def _with_lake_locations(settings: Settings, store: MetadataStore) -> Settings:
    """A registry that takes no writes yet, or whose role lacks privileges, is reported when the daemon begins to lead.
    Raises ConfigError if the settings name other locations than the registry.
    """
    try:
        return await located(settings, store, record=True)
    except (PermissionDenied, ReadOnly):
        with suppress(PermissionDenied):
            return await located(settings, store)
    return settings


def selected(subscriptions: Mapping[str, Subscription], settings: Settings) -> dict[str, Subscription]:
    """Returns the subscriptions of the components that this daemon runs, in the file's order.

    Raises ConfigError if `daemon.components` has a name that the file does not have.
    """
    names = settings.daemon.components
    if names is None:
        return dict(subscriptions)
    unknown = [name for name in names if name not in subscriptions]
    if unknown:
        known = f"it has {', '.join(subscriptions)}" if subscriptions else "it has none"
        raise ConfigError(
            f"daemon.components: {settings.subscriptions} has no component {', '.join(map(repr, unknown))}; {known}"
        )
    return {name: subscription for name, subscription in subscriptions.items() if name in names}


def source_kind(settings: Settings) -> str:
    """Returns the kind of the daemon's source, as `astha status --all` shows it."""
    if settings.source.address is not None:
        return settings.source.address.transport
    return settings.registry.backend


def context(settings: Settings, store: MetadataStore, clock: LoopClock) -> ComponentContext:
    """Returns the context of components and of their commands."""
    return ComponentContext(store, clock, settings.registry.url, settings.lake, settings.redactor())


class BadComponent(msgspec.Struct, frozen=True):
    """An entry of subscriptions.yaml that can't be used, because of an error in the file or in the component's code."""

    name: str
    subscription: Subscription
    error: ConfigError | ComponentError

    @property
    def remedy(self) -> str:
        return self.error.remedy if isinstance(self.error, ComponentError) else "correct the entry in the file"


def load_components(
    subscriptions: Mapping[str, Subscription], context: ComponentContext, path: Path
) -> list[NamedSubscriber | BadComponent]:
    """Loads the components in the file's order. A ConfigError names the file and the line."""
    found: list[NamedSubscriber | BadComponent] = []
    for name, subscription in subscriptions.items():
        context.redact(*secrets_in(subscription.settings))
        try:
            own = msgspec.structs.replace(context, component=name, tables=subscription.tables)
            subscriber = load_component(name, subscription.settings, own, subscription.use)
            require_match(name, subscription, subscriber.subscribed_tables)
            _require_durable_to_hold(name, subscription, subscriber)
        except ConfigError as error:
            located = ConfigError(f"{path}: line {subscription.line}: {error}")
            located.__cause__ = error
            found.append(BadComponent(name, subscription, located))
        except ComponentError as error:
            found.append(BadComponent(name, subscription, error))
        else:
            found.append(NamedSubscriber(name, subscriber, subscription.lane))
    return found


def _require_durable_to_hold(name: str, subscription: Subscription, subscriber: Subscriber) -> None:
    if subscription.lane.on_exhausted == "hold" and not is_durable(subscriber):
        raise ConfigError(
            f"component {name} can't hold: its state is in memory, so it is refreshed at every start: "
            "remove `on_exhausted: hold` from its lane"
        )


def usable(found: Iterable[NamedSubscriber | BadComponent], *, run_others: bool) -> list[NamedSubscriber]:
    """Returns the components to run. Raises ConfigError for an error in the file. A component whose code can't be used
    gets a stand-in with an open circuit, or raises ConfigError unless `run_others`.
    """
    components = []
    for each in found:
        if isinstance(each, NamedSubscriber):
            components.append(each)
            continue
        if isinstance(each.error, ConfigError):
            raise each.error
        if not run_others:
            raise ConfigError(f"{each.error} -> {each.remedy}; or set daemon.on_bad_component to run_others")
        log.error(
            "component can't be loaded, the others run",
            component=each.name,
            problem=str(each.error),
            remedy=each.remedy,
            exc_info=each.error.__cause__ or each.error,
        )
        stand_in = BrokenComponent(each.subscription.tables, each.error)
        components.append(NamedSubscriber(each.name, stand_in, each.subscription.lane))
    return components


def _source(settings: Settings, store: MetadataStore, clock: LoopClock) -> Source:
    """Returns the registry's own source, or the stream of another daemon."""
    url, address = settings.registry.url.get_secret_value(), settings.source.address
    if address is None:
        return open_source(url, store, settings.source, settings.change_log, clock, settings.group)
    require_group(settings)
    return open_follower(address, settings.source, store, settings.group, url, clock)


def _tracing(settings: Settings, holder: str, clock: LoopClock) -> Tracing | None:
    return open_tracing(
        settings.tracing,
        settings.redactor(),
        clock,
        group=settings.group,
        source=source_kind(settings),
        instance=holder,
        follows=settings.source.address is not None,
    )


def require_group(settings: Settings) -> None:
    """Raises ConfigError if a follower has the group of the leader that it follows."""
    if settings.source.address is not None and settings.group == DEFAULT_GROUP:
        raise ConfigError(
            f"a daemon that follows another one needs a group of its own: set `group`; {DEFAULT_GROUP!r} is that of "
            "daemons that read the registry itself"
        )


def _process(settings: Settings, holder: str, components: Iterable[NamedSubscriber], clock: LoopClock) -> RunningDaemon:
    now = clock.now_ms()
    return RunningDaemon(
        holder=holder,
        group=settings.group,
        host=socket.gethostname(),
        pid=os.getpid(),
        role="standby",
        source=source_kind(settings),
        components=to_json_text([component.name for component in components]),
        version=version(),
        started_at=now,
        seen_at=now,
    )


def _leader_lock(settings: Settings, holder: str) -> LeaderLock | None:
    if not settings.lease.file_lock:
        return None
    url = parse_url(settings.registry.url.get_secret_value())
    address = display_url(url.set(username=None, password=None))
    if url.drivername == "sqlite":
        address = str(Path(str(url.database)).resolve())
    directory = settings.lease.directory or lock_directory(address)
    return None if directory is None else LeaderLock(directory, settings.group, holder)


def _holder() -> str:
    """Returns a unique name of this process for the lease."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
