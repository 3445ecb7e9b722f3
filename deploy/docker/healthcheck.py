"""The container's health check: succeeds while /livez of the daemon in this container returns 200.

Usage: healthcheck.py [server | catalog]. It reads the port and TLS like the daemon or the catalog, from ASTHA_SERVER__*
or ASTHA_CATALOG__* and from the settings file that ASTHA_CONFIG names, but without loading their code: it runs every
few seconds.
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys
from pathlib import Path

import yaml

TIMEOUT_S = 6.0
DEFAULT_PORTS = {"server": 27840, "catalog": 27841}


def main(group: str = "server") -> int:
    try:
        status = livez(*address(group))
    except (OSError, http.client.HTTPException, ValueError, yaml.YAMLError) as error:
        sys.stdout.write(f"no response: {error}\n")
        return 1
    sys.stdout.write(f"/livez returned {status}\n")
    return 0 if status == 200 else 1


def address(group: str) -> tuple[str, int, bool]:
    """Returns host, port and whether the server of these settings speaks TLS."""
    config = os.environ.get("ASTHA_CONFIG")
    settings = (yaml.safe_load(Path(config).read_text()) or {}).get(group) or {} if config else {}
    prefix = f"ASTHA_{group.upper()}__"
    settings |= {
        name.removeprefix(prefix).lower(): value for name, value in os.environ.items() if name.startswith(prefix)
    }
    host = str(settings.get("host", "127.0.0.1"))
    loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - replaced, not listened on
    port = int(settings.get("port", DEFAULT_PORTS[group]))
    return loopback.get(host, host), port, bool(settings.get("tls_certificate_file"))


def livez(host: str, port: int, tls: bool) -> int:
    connection: http.client.HTTPConnection
    if tls:
        # The certificate is for the names that clients use. This connection never leaves the container.
        context = ssl._create_unverified_context()  # noqa: S323
        connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/livez")
        return connection.getresponse().status
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
