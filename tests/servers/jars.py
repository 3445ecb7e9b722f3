"""Jars from Maven repositories, by the resolver that comes with PySpark: fetched once, kept outside the work tree."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


class JarsMissing(Exception):
    """Jars could not be fetched; the message says why."""


@dataclass(frozen=True, slots=True)
class Jar:
    """Coordinates of a jar. Versions are exact: a range may ask repositories that cannot be reached."""

    group: str
    artifact: str
    version: str
    classifier: str = ""
    transitive: bool = True

    def __str__(self) -> str:
        return ":".join(part for part in (self.group, self.artifact, self.version, self.classifier) if part)

    def dependency(self) -> str:
        flags = f'transitive="{str(self.transitive).lower()}"'
        head = f'<dependency org="{self.group}" name="{self.artifact}" rev="{self.version}" {flags}'
        if not self.classifier:
            return f'{head} conf="default->default"/>'
        kind = f'<artifact name="{self.artifact}" type="jar" ext="jar" m:classifier="{self.classifier}"/>'
        return f'{head} conf="default->default">{kind}</dependency>'


def cache_directory() -> Path:
    """Returns this user's cache directory; ASTHA_CACHE overrides it."""
    named = os.environ.get("ASTHA_CACHE")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "astha"


def java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else None
    found = found or shutil.which("java")
    if found is None:
        raise JarsMissing("no java on the PATH and none in JAVA_HOME: install Java 17")
    return found


def fetch(name: str, *jars: Jar) -> Path:
    """Returns the directory that holds these jars and their dependencies. The first call downloads them."""
    wanted = "\n".join(str(jar) for jar in jars)
    target = cache_directory() / "jars" / f"{name}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with alone(target.with_suffix(".lock")):
        if not target.exists():
            print(f"fetching {name}: {', '.join(str(jar) for jar in jars)}", file=sys.stderr, flush=True)
            _download(jars, target)
            print(f"fetched {name}: {len(list(target.iterdir()))} files", file=sys.stderr, flush=True)
    return target


def _download(jars: tuple[Jar, ...], target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        description = Path(scratch) / "ivy.xml"
        # The resolver notes what it has found in its cache, by the module's name: one that is ours alone.
        description.write_text(
            '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
            f'<info organisation="astha" module="{target.name}"/>'
            '<configurations><conf name="default"/></configurations>'
            f"<dependencies>{''.join(jar.dependency() for jar in jars)}</dependencies></ivy-module>"
        )
        library = Path(scratch) / "library"
        command = [java(), "-jar", str(_resolver()), "-cache", str(cache_directory() / "ivy"), "-ivy", str(description)]
        command += ["-confs", "default", "-retrieve", f"{library}/[artifact]-[revision](-[classifier]).[ext]"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0 or not library.is_dir():
            lines = (done.stdout + done.stderr).splitlines()
            said = "; ".join([line.strip() for line in lines if "not found" in line or "ERROR" in line][:3])
            raise JarsMissing(f"could not fetch {', '.join(map(str, jars))}: {said or done.stderr[-500:]}")
        library.rename(target)


def _resolver() -> Path:
    spec = find_spec("pyspark")
    found = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not found:
        raise JarsMissing("PySpark brings the resolver for jars, and it is not installed: make setup")
    return found[-1]


@contextmanager
def alone(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
