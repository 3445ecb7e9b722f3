"""The coordinates of Debezium, and class paths of Java mains that use it."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.servers.jars import Jar, JarsMissing, cache_directory, fetch, java

VERSION = "3.6.1.Final"
JARS = tuple(
    Jar("io.debezium", artifact, VERSION)
    for artifact in ("debezium-api", "debezium-embedded", "debezium-connector-postgres")
)


def classpath(source: Path) -> str:
    """Returns the class path of this Java main and its dependencies. The first call downloads and compiles."""
    library = fetch("debezium", *JARS)
    version = hashlib.sha256(source.read_bytes() + library.name.encode()).hexdigest()[:12]
    classes = cache_directory() / "classes" / f"debezium-{version}"
    if not classes.exists():
        _compile(source, library, classes)
    return f"{classes}:{library}/*"


def _compile(source: Path, library: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        fresh = Path(scratch) / "classes"
        command = [_compiler(), "--release", "17", "-cp", f"{library}/*", "-d", str(fresh), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise JarsMissing(f"could not compile {source.name}: {done.stderr[-500:]}")
        if not target.exists():
            fresh.rename(target)


def _compiler() -> str:
    """Of the Java that will run it, else any: ``java Main.java`` would need it too, and charge it to Debezium."""
    found = shutil.which("javac", path=str(Path(java()).parent)) or shutil.which("javac")
    if found is None:
        raise JarsMissing(f"{java()} comes without a compiler: install a JDK (17 or newer), a JRE is not enough")
    return found
