"""What went wrong with the broker, as instructions for the lane."""

from __future__ import annotations

from astha.brokers.errors import BrokerError
from astha.subscribers import Retry


class BrokerUnusable(Retry):
    """There is no connection. `lasting`: another attempt with the same settings hardly succeeds."""

    def __init__(self, message: str, lasting: bool = False) -> None:
        super().__init__(message)
        self.lasting = lasting

    @classmethod
    def of(cls, error: BrokerError) -> BrokerUnusable:
        return cls(str(error), error.lasting)

    def again(self) -> BrokerUnusable:
        """Returns a copy: an error that is raised many times collects the tracebacks of all."""
        return BrokerUnusable(str(self), self.lasting)


class PublishRefused(Retry):
    """The broker has refused a message."""

    def __init__(self, address: str, topic: str, size: int, reason: str) -> None:
        super().__init__(f"MQTT broker {address} refuses {topic} ({size:,} bytes): {reason}")
        self.topic = topic
