"""A real Iceberg REST catalog: the server that Iceberg's own project tests its clients with, over a SQLite file or
PostgreSQL.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from registry.embedded_postgres import free_port
from tests.servers.jars import Jar, JarsMissing, fetch, java
from tests.servers.process import Server, ServerProcess

ICEBERG = "1.11.0"

GROUP = "org.apache.iceberg"
_JETTY = "12.1.5"
LIBRARIES = (
    Jar(GROUP, "iceberg-core", ICEBERG),
    Jar(GROUP, "iceberg-parquet", ICEBERG),
    Jar("org.eclipse.jetty.ee10", "jetty-ee10-servlet", _JETTY),
    Jar("org.eclipse.jetty.compression", "jetty-compression-server", _JETTY),
    Jar("org.eclipse.jetty.compression", "jetty-compression-gzip", _JETTY),
    Jar("org.xerial", "sqlite-jdbc", "3.49.1.0", transitive=False),
    Jar("org.slf4j", "slf4j-simple", "2.0.17", transitive=False),
)
# Apart: the resolver would take one artifact of a name for the other.
FIXTURES = (
    Jar(GROUP, "iceberg-open-api", ICEBERG, "test-fixtures", transitive=False),
    Jar(GROUP, "iceberg-core", ICEBERG, "tests", transitive=False),
)
_POSTGRES = Jar("org.postgresql", "postgresql", "42.7.7", transitive=False)
_START_S = 90.0
_FAST_START = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class RestCatalogServer(Server):
    """Listens on loopback. Its content survives `kill` and another `start`, on the same port.

    `postgres` is a URL, instead of a SQLite file. `java_options` by default make the JVM start soon, not run fast.
    """

    def __init__(
        self,
        directory: Path,
        warehouse: str,
        *,
        postgres: str | None = None,
        java_options: Sequence[str] = _FAST_START,
    ) -> None:
        self._directory = directory
        self._warehouse = warehouse
        self._postgres = postgres
        self._java_options = java_options
        self._port = free_port()
        self._process = ServerProcess("the REST catalog", directory / "rest-catalog.log")

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def catalog(self) -> dict[str, str]:
        """Returns the catalog properties for PyIceberg."""
        return {"type": "rest", "uri": self.uri}

    def start(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        environment = {
            "CATALOG_WAREHOUSE": self._warehouse,
            "CATALOG_REST_PORT": str(self._port),
            "CATALOG_CATALOG_NAME": "astha",
            **self._database(),
        }
        command = [java(), *self._java_options, "-cp", _class_path(postgres=self._postgres is not None)]
        command.append("org.apache.iceberg.rest.RESTCatalogServer")
        self._process.start(command, environment, self._answers, _START_S)

    def _database(self) -> dict[str, str]:
        uri, user = f"jdbc:sqlite:file:{self._directory / 'catalog.db'}", "user"
        if self._postgres is not None:
            parts = urlsplit(self._postgres)
            uri, user = f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}", parts.username or user
        return {"CATALOG_URI": uri, "CATALOG_JDBC_USER": user, "CATALOG_JDBC_PASSWORD": "password"}

    def _answers(self) -> bool:
        try:
            with urlopen(f"{self.uri}/v1/config", timeout=5) as answer:  # noqa: S310  (our own, on loopback)
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False


def _class_path(*, postgres: bool) -> str:
    libraries = fetch("iceberg-rest", *LIBRARIES)
    parts = [*(fetch(f"iceberg-{jar.classifier}", jar) for jar in FIXTURES), libraries]
    if postgres:
        parts.append(fetch("postgresql-jdbc", _POSTGRES))
    return os.pathsep.join([*(f"{part}/*" for part in parts), *hadoop()])


def hadoop() -> list[str]:
    """Hadoop's client comes with PySpark."""
    spec = find_spec("pyspark")
    found = sorted(Path(spec.origin).parent.glob("jars/hadoop-client-*.jar")) if spec and spec.origin else []
    if not found:
        raise JarsMissing("PySpark brings Hadoop's client, and it is not installed: make setup")
    return [str(path) for path in found]
