"""TLS with brokers."""

from __future__ import annotations

import ssl

from astha.errors import ConfigError
from astha.settings.source import BrokerSettings


def tls_context(settings: BrokerSettings, group: str) -> ssl.SSLContext:
    """Raises ConfigError if the files can't be used; `group` names the settings in it."""
    try:
        context = ssl.create_default_context(cafile=None if settings.ca_file is None else str(settings.ca_file))
        context.check_hostname = settings.check_hostname
        if settings.certificate_file is not None and settings.key_file is not None:
            password = settings.key_password.get_secret_value() if settings.key_password else ""
            context.load_cert_chain(str(settings.certificate_file), str(settings.key_file), password)
    except OSError as error:  # SSLError is one
        raise ConfigError(f"the TLS files of {group} can't be used: {error}") from error
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
