"""Keys of messages: the primary key as JSON, such as ``{"id":1}``. Equal keys are equal bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import msgspec

from astha.events import Event, Operation
from registry.models import PUBLISHED, Row

_encoder = msgspec.json.Encoder()


def key_of(row: Row) -> bytes:
    """Returns the row's key, with the columns in the order of the primary key."""
    return KEY_ENCODERS[type(row)](row)


def split_key_change(event: Event[Row]) -> tuple[Event[Row], ...]:
    """Returns a DELETE and an INSERT for an UPDATE that changes the primary key, else the event.

    Readers that keep a row per key would keep the old one otherwise. No verb of the registry changes a primary key;
    SQL by hand can. Both events have the position and index of the update.
    """
    before = event.before
    if before is None or event.operation is not Operation.UPDATE:
        return (event,)
    get_key = _KEY_GETTERS[type(before)]
    if get_key(before) == get_key(event.data):
        return (event,)
    return (
        Event(Operation.DELETE, before, before, event.commit, event.index),
        Event(Operation.INSERT, event.data, None, event.commit, event.index),
    )


def _key_encoder(kind: type[Row]) -> Callable[[Row], bytes]:
    """The encoder writes a struct's fields in order, so the bytes depend on the key's values only."""
    key_type = msgspec.defstruct(f"{kind.__name__}Key", [(name, Any) for name in kind.key], gc=False)
    get_key = _KEY_GETTERS[kind]
    if len(kind.key) == 1:
        return lambda row: _encoder.encode(key_type(get_key(row)))
    return lambda row: _encoder.encode(key_type(*get_key(row)))


_KEY_GETTERS: Mapping[type[Row], attrgetter[Any]] = {kind: attrgetter(*kind.key) for kind in PUBLISHED}
KEY_ENCODERS: Mapping[type[Row], Callable[[Row], bytes]] = {kind: _key_encoder(kind) for kind in PUBLISHED}
