"""What this machine offers to the story: free ports, Java, Spark, and an environment that is not the user's own."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from importlib.util import find_spec
from pathlib import Path

import yaml

from deploy.demo.story import Addresses
from registry.embedded_postgres import free_port

_ROOT = Path(__file__).parents[2]
_LOOPBACK = "127.0.0.1"


def listens(port: int) -> bool:
    try:
        socket.create_connection((_LOOPBACK, port), 1.0).close()
    except OSError:
        return False
    return True


def no_java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else None
    return None if found or shutil.which("java") else "it needs Java 17, and there is none"


def no_spark() -> str | None:
    return no_java() or (None if find_spec("pyspark") else "it needs the extra astha[spark]")


def choose_addresses() -> Addresses:
    """Returns the usual ports, and free ones in place of those where something listens."""
    usual = Addresses()
    return Addresses(
        *(free_port() if listens(port) else port for port in (usual.server, usual.catalog, usual.kafka, usual.mqtt))
    )


def environment(scratch: Path, addresses: Addresses) -> dict[str, str]:
    """Returns the variables of commands: no settings of the user's own Astha, and temporary files below ``scratch``."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ASTHA_")}
    cache = os.environ.get("ASTHA_CACHE") or str(
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "astha"
    )
    for name in ("home", "tmp", "run"):
        (scratch / name).mkdir()
    _install_extensions(scratch / "home")
    java = os.environ.get("JAVA_TOOL_OPTIONS", "")
    postgres = os.environ.get("ASTHA_POSTGRES_BIN")
    return {
        **inherited,
        **addresses.settings(),
        **({"ASTHA_POSTGRES_BIN": postgres} if postgres else {}),
        "ASTHA_CACHE": cache,
        "HOME": str(scratch / "home"),  # with DuckDB's extensions
        "JAVA_TOOL_OPTIONS": f"{java} -Djava.io.tmpdir={scratch / 'tmp'} -XX:-UsePerfData".strip(),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "PYTHONPATH": str(_ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "RUNTIME_DIRECTORY": str(scratch / "run"),
        "SPARK_LOCAL_DIRS": str(scratch / "tmp"),
        "SPARK_LOCAL_IP": _LOOPBACK,
        "TMPDIR": str(scratch / "tmp"),
    }


def _install_extensions(home: Path) -> None:
    """Puts DuckDB's extensions where `LOAD iceberg` looks for them: those of Python packages, instead of a download."""
    import duckdb

    with duckdb.connect() as connection:
        found = connection.execute("SELECT platform, version() FROM pragma_platform()").fetchone()
    if found is None:
        return
    target = home / ".duckdb" / "extensions" / str(found[1]) / str(found[0])
    target.mkdir(parents=True)
    for name in ("avro", "httpfs", "iceberg"):
        spec = find_spec(f"duckdb_extension_{name}")
        if spec is not None and spec.origin is not None:
            for file in Path(spec.origin).parent.rglob(f"{name}.duckdb_extension"):
                (target / file.name).symlink_to(file)


def token_of(project: Path) -> str:
    """Returns the token of the daemon that `astha up` runs in this directory."""
    settings: dict[str, dict[str, str]] = yaml.safe_load((project / "astha.yaml").read_text())
    return settings["server"]["token"]
