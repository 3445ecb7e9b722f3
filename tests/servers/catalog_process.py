"""`astha catalog` in a process of its own, so that it can be killed and other programs can use it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import msgspec

from registry.embedded_postgres import free_port
from tests.servers.process import Server, ServerProcess

_START_S = 90.0


class CatalogProcess(Server):
    """Listens on loopback; another `start` after `kill` listens on the same port. `settings` are those of the groups
    `catalog` and `lake`.
    """

    def __init__(self, directory: Path, registry_url: str, warehouse: str, **settings: Mapping[str, object]) -> None:
        self._port = free_port()
        self._config = directory / f"catalog-{self._port}.yaml"
        self._content = {
            "registry": {"url": registry_url},
            "log": {"format": "json"},
            "lake": {"warehouse": warehouse, **settings.get("lake", {})},
            "catalog": {"port": self._port, **settings.get("catalog", {})},
        }
        self._process = ServerProcess("astha catalog", directory / f"catalog-{self._port}.log")

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._config.write_bytes(msgspec.json.encode(self._content))
        self._config.chmod(0o600)
        foreign = [f"-u{name}" for name in os.environ if name.startswith("ASTHA_")]
        command = [sys.executable, "-m", "astha.cli", "catalog", "--config", str(self._config)]
        self._process.start(["env", *foreign, *command], {}, self._ready, _START_S)

    def _ready(self) -> bool:
        try:
            with urlopen(f"{self.uri}/readyz", timeout=5) as response:  # noqa: S310  (our own, on loopback)
                return bool(response.status == 200)
        except (URLError, OSError):
            return False
