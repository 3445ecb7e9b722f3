"""Everything that the daemon may raise, beside the registry's own errors.

AsthaError
|-- ConfigError        settings or subscriptions are wrong        -> fix the named line, start again
|-- ComponentError     a component's own code can't be used     -> correct or install it; the others run
|-- AddressTaken       somebody else listens there                -> stop them, or choose another port
|-- SourceError        the stream of changes can't go on
|   |-- SourceLost     connection gone, server restarting         -> reconnect with backoff, nothing is lost
|   |   `-- SlotInUse  somebody else reads our slot               -> wait; if it is a daemon of the past, end it
|   |-- SourceReset    slot lost or history replaced              -> new slot, refresh every component
|   `-- DecodeError    bytes that are not what they should be     -> reconnect; if it repeats, report it
|-- DeliveryError      what a component may raise to say more
|   |-- Reject         this event can never be delivered          -> no retries: drop it, refresh
|   `-- Retry          not now                                    -> retry with backoff
`-- Fenced             another daemon leads                       -> stop delivering, stand by
"""

from __future__ import annotations

__all__ = [
    "AddressTaken",
    "AsthaError",
    "ComponentError",
    "ConfigError",
    "DecodeError",
    "DeliveryError",
    "Fenced",
    "Reject",
    "Retry",
    "SlotInUse",
    "SourceError",
    "SourceLost",
    "SourceReset",
]


class AsthaError(Exception):
    """Base of all; the message names the thing, the value and the way out."""


class ConfigError(AsthaError):
    pass


class ComponentError(AsthaError):
    """Names the component; `remedy` says what to do."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


class AddressTaken(AsthaError):
    pass


class SourceError(AsthaError):
    pass


class SourceLost(SourceError):
    pass


class SlotInUse(SourceLost):
    pass


class SourceReset(SourceError):
    pass


class DecodeError(SourceError):
    pass


class DeliveryError(AsthaError):
    pass


class Reject(DeliveryError):
    pass


class Retry(DeliveryError):
    pass


class Fenced(AsthaError):
    pass
