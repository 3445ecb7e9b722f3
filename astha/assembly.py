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
from astha.sources.opening import open_source
from astha.subscribers.load import load_component
from astha.subscribers.surroundings import Surroundings
from registry.contract import MetadataStore
from registry.opening import open_store


class Assembly(msgspec.Struct, frozen=True):
    daemon: Daemon
    store: MetadataStore
    holder: str


async def assemble(settings: Settings, clock: LoopClock) -> Assembly:
    """ConfigError, SchemaMismatch or Unavailable if it can't be; then nothing is left open."""
    subscriptions = read_subscriptions(settings.subscriptions)
    url = settings.registry.url.get_secret_value()
    store = await open_store(url, settings=settings.registry.store, clock=clock)
    try:
        components = load_components(subscriptions, surroundings(settings, store, clock), settings.subscriptions)
        holder = _holder()
        leadership = Leadership(store, settings.lease, holder, clock)
        source = open_source(url, store, settings.source, settings.change_log, clock)
        daemon = Daemon(store, source, components, leadership, settings.daemon, clock)
    except BaseException:
        await store.close()
        raise
    return Assembly(daemon, store, holder)


def surroundings(settings: Settings, store: MetadataStore, clock: LoopClock) -> Surroundings:
    """What components, and the commands that they bring, are made with."""
    return Surroundings(store, clock, settings.registry.url, settings.lake)


def load_components(subscriptions: Mapping[str, Subscription], around: Surroundings, path: Path) -> list[Component]:
    """ConfigError names the file, and the line of the component that can't be had."""
    components = []
    for name, subscription in subscriptions.items():
        try:
            subscriber = load_component(name, subscription.settings, around, subscription.use)
            require_match(name, subscription, subscriber.subscribed_tables)
        except ConfigError as error:
            raise ConfigError(f"{path}: line {subscription.line}: {error}") from error
        components.append(Component(name, subscriber, subscription.lane))
    return components


def _holder() -> str:
    """Who we are, for whoever looks at the lease; never the same twice."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
