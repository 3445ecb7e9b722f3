"""From settings to the parts of a daemon. What can be found wrong before anything moves is found here."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import msgspec
import structlog

from astha.clock import LoopClock
from astha.clock_guard import ClockGuard
from astha.daemon import Component, Daemon
from astha.errors import ComponentError, ConfigError
from astha.leadership import Leadership
from astha.redaction import secrets_in
from astha.routing.subscriptions import Subscription, read_subscriptions, require_match
from astha.settings import Settings
from astha.sources.factory import open_source
from astha.subscribers.broken import BrokenComponent
from astha.subscribers.context import ComponentContext
from astha.subscribers.contract import Subscriber, is_durable
from astha.subscribers.loader import load_component
from registry.connect import Stores, open_stores, require_schema
from registry.contract import MetadataStore

log = structlog.get_logger(__name__)


class Assembly(msgspec.Struct, frozen=True):
    daemon: Daemon
    stores: Stores
    holder: str

    @property
    def store(self) -> MetadataStore:
        return self.stores.main


async def assemble(settings: Settings, clock: LoopClock) -> Assembly:
    """ConfigError, SchemaMismatch or Unavailable if it can't be; then nothing is left open."""
    subscriptions = read_subscriptions(settings.subscriptions)
    url = settings.registry.url.get_secret_value()
    stores = await open_stores(url, settings=settings.registry.store, clock=clock)
    store, books = stores.main, stores.reserved
    try:
        guard = ClockGuard(clock, settings.clock, store.time)
        await guard.begin()  # before the lease records our own time
        around = msgspec.structs.replace(context(settings, store, clock), clock_guard=guard)
        found = load_components(subscriptions, around, settings.subscriptions)
        components = usable(found, run_others=settings.daemon.on_bad_component == "run_others")
        holder = _holder()
        leadership = Leadership(books, settings.lease, holder, clock)
        source = open_source(url, books, settings.source, settings.change_log, clock)
        same_schema = partial(require_schema, url, settings.registry.store)
        daemon = Daemon(store, source, components, leadership, settings.daemon, clock, same_schema, books)
        daemon.clock_guard = guard
    except BaseException:
        await stores.close()
        raise
    return Assembly(daemon, stores, holder)


def context(settings: Settings, store: MetadataStore, clock: LoopClock) -> ComponentContext:
    """What components, and the commands that they bring, are made with."""
    return ComponentContext(store, clock, settings.registry.url, settings.lake, settings.redactor())


class BadComponent(msgspec.Struct, frozen=True):
    """An entry of subscriptions.yaml that can't be had, and why: a mistake in the file, or in the component's code."""

    name: str
    subscription: Subscription
    error: ConfigError | ComponentError

    @property
    def remedy(self) -> str:
        return self.error.remedy if isinstance(self.error, ComponentError) else "correct the entry in the file"


def load_components(
    subscriptions: Mapping[str, Subscription], around: ComponentContext, path: Path
) -> list[Component | BadComponent]:
    """In the file's order. A ConfigError names the file and the line."""
    found: list[Component | BadComponent] = []
    for name, subscription in subscriptions.items():
        around.redact(*secrets_in(subscription.settings))
        try:
            subscriber = load_component(name, subscription.settings, around, subscription.use)
            require_match(name, subscription, subscriber.subscribed_tables)
            _require_durable_to_hold(name, subscription, subscriber)
        except ConfigError as error:
            located = ConfigError(f"{path}: line {subscription.line}: {error}")
            located.__cause__ = error
            found.append(BadComponent(name, subscription, located))
        except ComponentError as error:
            found.append(BadComponent(name, subscription, error))
        else:
            found.append(Component(name, subscriber, subscription.lane))
    return found


def _require_durable_to_hold(name: str, subscription: Subscription, subscriber: Subscriber) -> None:
    if subscription.lane.on_exhausted == "hold" and not is_durable(subscriber):
        raise ConfigError(
            f"component {name} can't hold: its state is in memory, so it is refreshed at every start: "
            "remove `on_exhausted: hold` from its lane"
        )


def usable(found: Iterable[Component | BadComponent], *, run_others: bool) -> list[Component]:
    """What a daemon runs. A mistake in the file ends it; a component whose code can't be used has a lane that is
    broken, unless the operator wants all components or none.
    """
    components = []
    for each in found:
        if isinstance(each, Component):
            components.append(each)
            continue
        if isinstance(each.error, ConfigError):
            raise each.error
        if not run_others:
            raise ConfigError(f"{each.error} -> {each.remedy}; or set daemon.on_bad_component to run_others")
        log.error(
            "component can't be loaded; the others run",
            component=each.name,
            problem=str(each.error),
            remedy=each.remedy,
            exc_info=each.error.__cause__ or each.error,
        )
        stand_in = BrokenComponent(each.subscription.tables, each.error)
        components.append(Component(each.name, stand_in, each.subscription.lane))
    return components


def _holder() -> str:
    """Who we are, for whoever looks at the lease; never the same twice."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
