"""How driver, master and workers reach each other."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from components.lib.spark.errors import SessionProblem
from components.lib.spark.settings import SparkSettings

_OTHER_NETWORK = "192.0.2.1"  # reserved for documentation (RFC 5737), so never this machine's own network
_CONNECT_S = 5.0


def driver_addresses(settings: SparkSettings) -> tuple[str, str]:
    """Returns the address to listen at, and the one that workers connect to. Raises `SessionProblem` if there is no
    route to the master.
    """
    if settings.host is not None:
        return "0.0.0.0", settings.host  # noqa: S104  (the name may resolve elsewhere only, such as a service's)
    if settings.local:
        return "127.0.0.1", "127.0.0.1"
    address = settings.master.removeprefix("k8s://")
    found = urlsplit(address.partition(",")[0].partition("/;")[0] if "://" in address else f"//{_OTHER_NETWORK}")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
            probe.connect((found.hostname or _OTHER_NETWORK, found.port or 443))
            here: str = probe.getsockname()[0]
    except (OSError, ValueError) as error:
        raise SessionProblem(f"no route to {settings.address} ({error}): correct 'master', or set 'host'") from error
    return here, here


def require_master(master: str) -> None:
    """Raises `SessionProblem` if no standalone master answers. Spark itself tries for a minute and reports less."""
    if not master.startswith("spark://"):
        return
    problems: list[str] = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), _CONNECT_S):
                return
        except (OSError, ValueError) as error:
            problems.append(f"{address}: {error}")
    raise SessionProblem(f"no Spark master answers at {master} ({'; '.join(problems)}): start it, or correct 'master'")
