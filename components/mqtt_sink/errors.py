"""What went wrong with the broker, in words that say what to do."""

from __future__ import annotations

from aiomqtt import MqttCodeError
from paho.mqtt.reasoncodes import ReasonCode

from astha.subscribers import Retry

NOT_AUTHORIZED = 0x87
SESSION_TAKEN_OVER = 0x8E

_REMEDIES = {
    0x80: "the connection was lost: the broker closed it, or the network failed",
    0x82: "if it refuses a message as too large, lower `max_payload_bytes`",
    0x84: "it does not speak MQTT 5; use a broker that does",
    0x85: "it refuses the client identifier; set `client_id`",
    0x86: "wrong user name or password; correct `username` and `password`",
    NOT_AUTHORIZED: "not authorized; check `username` and `password`, and the broker's access control",
    0x88: "the broker is unavailable",
    0x89: "the broker is busy",
    0x8A: "the broker has banned this client",
    SESSION_TAKEN_OVER: "another client uses the same client identifier; give each its own `client_id`, or none",
    0x90: "it refuses the topic's name; choose another `prefix`",
    0x93: "more messages in flight than it allows; lower `max_in_flight`",
    0x95: "the message is too large for it; lower `max_payload_bytes`, or raise the broker's limit",
    0x97: "a quota of the broker is exceeded",
    0x99: "it refuses the payload's format",
    0x9A: "it supports no retained messages; use a broker that does",
    0x9B: "it does not support QoS 1; use a broker that does",
}
_TLS_SIGNS = ("SSL", "TLS", "CERTIFICATE")


class BrokerUnusable(Retry):
    """There is no connection. `lasting`: another attempt with the same settings hardly succeeds."""

    def __init__(self, message: str, lasting: bool = False) -> None:
        super().__init__(message)
        self.lasting = lasting

    def again(self) -> BrokerUnusable:
        """Returns a copy: an error that is raised many times collects the tracebacks of all."""
        return BrokerUnusable(str(self), self.lasting)


class PublishRefused(Retry):
    """The broker has refused a message."""

    def __init__(self, address: str, topic: str, size: int, reason: ReasonCode) -> None:
        super().__init__(f"MQTT broker {address} refuses {topic} ({size:,} bytes): {_described(reason)}")
        self.topic = topic


def accepted(reason: ReasonCode) -> bool:
    """Whether an acknowledgement means that the broker has the message."""
    return bool(reason.value < 0x80)


def connection_error(address: str, error: BaseException) -> BrokerUnusable:
    """Translates an error of connecting, or the cause of a lost connection."""
    reason = error.rc if isinstance(error, MqttCodeError) else None
    if isinstance(reason, ReasonCode):
        lasting = reason.value in (0x84, 0x85, 0x86, NOT_AUTHORIZED, 0x8A, SESSION_TAKEN_OVER)
        return BrokerUnusable(f"MQTT broker {address}: {_described(reason)}", lasting)
    text = str(error) or repr(error)
    if any(sign in text.upper() for sign in _TLS_SIGNS):
        return BrokerUnusable(
            f"MQTT broker {address}: TLS failed: {text}; check `ca`, `cert`, `key` and the host", True
        )
    return BrokerUnusable(f"MQTT broker {address}: {text}")


def _described(reason: ReasonCode) -> str:
    remedy = _REMEDIES.get(reason.value)
    return f"{reason} (code {reason.value:#04x})" + (f": {remedy}" if remedy else "")
