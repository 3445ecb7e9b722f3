"""What depends on PostgreSQL, on each version that is supported: ``make matrix``, ``make matrix VERSIONS="14 18"``.

Fetches the servers (`tests.servers.postgres`), runs pytest once a version and shows a table. The exit code is 1 if
anything failed on any of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from registry.embedded_postgres import BIN_SETTING
from tests.servers.jars import JarsMissing
from tests.servers.postgres import RELEASES, programs

TESTS = (
    "tests/unit/astha/sources/postgres",
    "tests/contracts",
    "tests/integration/registry",
    "tests/integration/astha/test_postgres_source.py",
    "tests/integration/astha/test_daemon.py",
    "tests/integration/astha/test_preflight.py",
    "tests/faults",
)


@dataclass(frozen=True)
class Result:
    version: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    code: int

    @property
    def good(self) -> bool:
        return self.code == 0 and self.passed > 0 and not self.failed

    def line(self) -> str:
        minutes = f"{self.seconds // 60:.0f}:{self.seconds % 60:02.0f}"
        verdict = "" if self.good else f"  exit code {self.code}"
        return f"{self.version:>10} {self.passed:8} {self.failed:8} {self.skipped:8} {minutes:>8}{verdict}"


def run(version: str, directory: Path) -> Result:
    report = directory / f"{version}.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-k", "not sqlite", f"--junitxml={report}", *TESTS]
    started = time.monotonic()
    done = subprocess.run(command, env={**os.environ, BIN_SETTING: str(programs(version))}, check=False)
    seconds = time.monotonic() - started
    if not report.exists():
        return Result(RELEASES[version], 0, 0, 0, seconds, done.returncode)
    suites = list(ET.parse(report).getroot().iter("testsuite"))  # noqa: S314  (our own pytest wrote it)

    def count(*names: str) -> int:
        return sum(int(suite.get(name, 0)) for suite in suites for name in names)

    failed, skipped = count("failures", "errors"), count("skipped")
    return Result(RELEASES[version], count("tests") - failed - skipped, failed, skipped, seconds, done.returncode)


def main(versions: list[str]) -> int:
    try:
        for version in versions:
            programs(version)
    except JarsMissing as error:
        print(f"matrix: {error}", file=sys.stderr)  # noqa: T201
        return 2
    with tempfile.TemporaryDirectory() as directory:
        results = []
        for version in versions:
            print(f"\n== PostgreSQL {RELEASES[version]}", flush=True)  # noqa: T201
            results.append(run(version, Path(directory)))
    print("\nPostgreSQL   passed   failed  skipped     time")  # noqa: T201
    for result in results:
        print(result.line())  # noqa: T201
    return 0 if all(result.good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(RELEASES)))
