"""TLS with brokers."""

from __future__ import annotations

import ssl

from astha.brokers.errors import BrokerError
from astha.settings.brokers import TlsSettings


def tls_context(settings: TlsSettings, name: str) -> ssl.SSLContext:
    """Reads files, so call it in a thread. Raises BrokerError if one can't be used; `name` is that of the settings."""
    try:
        context = ssl.create_default_context(cafile=None if settings.ca is None else str(settings.ca))
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise BrokerError(f"`{name}.ca` {settings.ca} can't be read: {error}", lasting=True) from error
    context.check_hostname = settings.check_hostname
    if settings.certificate is not None and settings.key is not None:
        # Without a password, OpenSSL would ask for one at the terminal.
        password = "" if settings.key_password is None else settings.key_password.get_secret_value()
        try:
            context.load_cert_chain(settings.certificate, settings.key, password)
        except (OSError, ValueError) as error:
            files = f"`{name}.certificate` {settings.certificate} with `{name}.key` {settings.key}"
            reason = f"{files} can't be used: {error}; is `{name}.key_password` right?"
            raise BrokerError(reason, lasting=True) from error
    context.sslsocket_class = _ClosingSocket
    return context


class _ClosingSocket(ssl.SSLSocket):
    """Closes itself if the handshake fails: the clients leave that to the garbage collector, which the daemon runs
    rarely.
    """

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except BaseException:
            self.close()
            raise
