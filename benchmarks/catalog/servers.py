"""The two catalogs, each in a process of its own, on the same PostgreSQL and the same disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from registry.embedded_postgres import EmbeddedPostgres
from tests.servers.rest_catalog import RestCatalogServer

_JAVA_OPTIONS = ("-Xmx1g",)
"""The JVM compiles as it does by default: this is measured, not only used."""


@contextmanager
def our_catalog(url: str, warehouse: Path) -> Iterator[str]:
    """Runs `astha catalog`, and yields its URL."""
    command = [sys.executable, "-m", "astha.cli", "catalog", "--set", "catalog.port=0", "--set", "log.format=json"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ASTHA_")}
    environment |= {"ASTHA_REGISTRY": url, "ASTHA_LAKE__WAREHOUSE": str(warehouse)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            said = json.loads(line)
            if "url" in said:
                yield said["url"]
                return
        raise RuntimeError("astha catalog did not start")
    finally:
        process.terminate()
        process.wait()
        process.stderr.close()


@contextmanager
def reference_catalog(server: EmbeddedPostgres, directory: Path, warehouse: Path) -> Iterator[str]:
    """Runs Iceberg's own server, and yields its URL."""
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute("CREATE DATABASE reference")
    with RestCatalogServer(
        directory, warehouse.as_uri(), postgres=server.url("reference"), java_options=_JAVA_OPTIONS
    ) as reference:
        yield reference.uri
