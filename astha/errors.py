"""The errors of the daemon, beside those of the registry.

AsthaError
|-- ConfigError        settings or subscriptions are wrong        -> fix the named line, start again
|-- ComponentError     a component's own code can't be used        -> correct or install it; the others run
|-- AddressTaken       another process listens there              -> stop it, or choose another port
|-- SourceError        the stream of changes can't continue
|   |-- SourceLost     connection gone, server restarting         -> reconnect with backoff, nothing is lost
|   |   `-- SlotInUse  another connection reads the slot          -> wait, then terminate a former leader's
|   |-- ChangesLost    a replay's changes are not retained        -> refresh that component
|   |-- SourceReset    slot lost or history replaced              -> new slot, refresh every component
|   `-- DecodeError    malformed bytes in the stream              -> reconnect; if it repeats, report it
|-- DeliveryError      raised by components, as an instruction
|   |-- Reject         this event can never be delivered          -> do not retry: drop it, refresh
|   `-- Retry          not now                                    -> retry with backoff
`-- LeadershipLost     another daemon leads                       -> stop delivering, stand by
"""

from __future__ import annotations

__all__ = [
    "AddressTaken",
    "AsthaError",
    "ChangesLost",
    "ComponentError",
    "ConfigError",
    "DecodeError",
    "DeliveryError",
    "LeadershipLost",
    "Reject",
    "Retry",
    "SlotInUse",
    "SourceError",
    "SourceLost",
    "SourceReset",
]


class AsthaError(Exception):
    """The base of all; the message names the thing, the value and the remedy."""


class ConfigError(AsthaError):
    pass


class ComponentError(AsthaError):
    """The message names the component; `remedy` is what to do."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


class AddressTaken(AsthaError):
    pass


class SourceError(AsthaError):
    pass


class SourceLost(SourceError):
    pass


class ChangesLost(SourceError):
    """What a replay was to return is not retained any more: the component refreshes."""


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


class LeadershipLost(AsthaError):
    pass
