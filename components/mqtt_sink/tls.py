"""The TLS context of a connection."""

from __future__ import annotations

import ssl

from components.mqtt_sink.errors import BrokerUnusable
from components.mqtt_sink.settings import MqttSettings


class _ClosingSocket(ssl.SSLSocket):
    """The client library forgets a socket whose handshake has failed, so it closes itself."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except BaseException:
            self.close()
            raise


def tls_context(settings: MqttSettings) -> ssl.SSLContext:
    """Reads the files of certificates: call it in a thread. Raises BrokerUnusable, which names the setting."""
    try:
        context = ssl.create_default_context(cafile=None if settings.ca is None else str(settings.ca))
    except (OSError, ValueError) as error:
        raise BrokerUnusable(f"MQTT: `ca` {settings.ca} can't be read: {error}", lasting=True) from None
    if settings.cert is not None and settings.key is not None:
        try:
            # Without a password, OpenSSL would ask for one at the terminal.
            context.load_cert_chain(settings.cert, settings.key, password="")
        except (OSError, ValueError) as error:
            files = f"`cert` {settings.cert} with `key` {settings.key}"
            raise BrokerUnusable(f"MQTT: {files} can't be used: {error}; the key must not be encrypted", True) from None
    context.sslsocket_class = _ClosingSocket
    return context
