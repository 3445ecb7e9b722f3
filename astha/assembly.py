"""From settings to the parts of a daemon. What can be found wrong before anything moves is found here."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec

from astha.clock import LoopClock
from astha.daemon import Component, Daemon
from astha.errors import ConfigError
from astha.leadership import Leadership
from astha.routing.subscriptions import Subscription, read_subscriptions, require_match
from astha.settings import Settings
from astha.sources.contract import Source
from astha.sources.postgres.source import PostgresSource
from astha.subscribers.load import load_component
from registry.contract import MetadataStore
from registry.opening import open_store


class Assembly(msgspec.Struct, frozen=True):
    daemon: Daemon
    store: MetadataStore
    holder: str


async def assemble(settings: Settings, clock: LoopClock) -> Assembly:
    """ConfigError, SchemaMismatch or Unavailable if it can't be; then nothing is left open."""
    subscriptions = read_subscriptions(settings.subscriptions)
    store = await open_store(settings.registry.url.get_secret_value(), settings=settings.registry.store, clock=clock)
    try:
        components = load_components(subscriptions, store, settings.subscriptions)
        holder = _holder()
        leadership = Leadership(store, settings.lease, holder, clock)
        source = make_source(settings, store, clock)
        daemon = Daemon(store, source, components, leadership, settings.daemon, clock)
    except BaseException:
        await store.close()
        raise
    return Assembly(daemon, store, holder)


def load_components(subscriptions: Mapping[str, Subscription], store: MetadataStore, path: Path) -> list[Component]:
    """ConfigError names the file, and the line of the component that can't be had."""
    components = []
    for name, subscription in subscriptions.items():
        try:
            subscriber = load_component(name, subscription.settings, store, subscription.use)
            require_match(name, subscription, subscriber.subscribed_tables)
        except ConfigError as error:
            raise ConfigError(f"{path}: line {subscription.line}: {error}") from error
        components.append(Component(name, subscriber, subscription.lane))
    return components


def make_source(settings: Settings, store: MetadataStore, clock: LoopClock) -> Source:
    registry = settings.registry
    if registry.is_postgres:
        return PostgresSource(registry.conninfo(), store, settings.source, clock)
    raise ConfigError(f"{registry.shown}: the daemon can't follow a registry on SQLite yet: use postgresql://")


def _holder() -> str:
    """Who we are, for whoever looks at the lease; never the same twice."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
