"""Iceberg's REST Compatibility Kit: the tests that its project runs against catalogs, by JUnit's console launcher."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from tests.servers.jars import Jar, fetch, java
from tests.servers.rest_catalog import FIXTURES, GROUP, ICEBERG, LIBRARIES, hadoop

TABLES = "org.apache.iceberg.rest.RESTCompatibilityKitCatalogTests"

_LIBRARIES = (
    *LIBRARIES,
    Jar(GROUP, "iceberg-data", ICEBERG),
    Jar("org.junit.platform", "junit-platform-console-standalone", "1.13.4"),
    Jar("org.assertj", "assertj-core", "3.27.6"),
    Jar("org.awaitility", "awaitility", "4.3.0"),
    Jar("org.mockito", "mockito-core", "4.11.0"),
)
_TESTS = (
    *FIXTURES,
    Jar(GROUP, "iceberg-open-api", ICEBERG, "tests", transitive=False),
    Jar(GROUP, "iceberg-api", ICEBERG, "tests", transitive=False),
)
_LIMIT_S = 1_200


class KitFailed(Exception):
    """The kit did not run; the message has the end of its output."""


@dataclass(slots=True)
class KitResult:
    """Tests by outcome. An aborted test's own assumptions do not hold, such as a feature that the catalog lacks."""

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # with the reason
    aborted: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.aborted)} aborted"


def run_kit(
    uri: str,
    warehouse: Path,
    reports: Path,
    *,
    test_class: str = TABLES,
    tests: tuple[str, ...] = (),
    options: Mapping[str, str] | None = None,
) -> KitResult:
    """Runs all tests of the class, or those that are named. `options` are environment variables: `CATALOG_X__Y` is the
    client's property `x-y`.
    """
    environment = {"CATALOG_URI": uri, "CATALOG_WAREHOUSE": str(warehouse), **(options or {})}
    command = [java(), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += ["-Drck.local=false", "-Drck.purge-test-namespaces=true"]
    command += ["-cp", _class_path(), "org.junit.platform.console.ConsoleLauncher", "execute"]
    chosen = [f"--select-method={test_class}#{test}" for test in tests] or [f"--select-class={test_class}"]
    command += [*chosen, "--details=summary", "--disable-banner", f"--reports-dir={reports}"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=_LIMIT_S
    )
    report = reports / "TEST-junit-jupiter.xml"
    if not report.exists():
        raise KitFailed(f"{command[-1]}: {(done.stdout + done.stderr)[-2_000:]}")
    return parse_report(report)


def parse_report(path: Path) -> KitResult:
    """Reads JUnit's XML report. A parametrized test is named with its arguments."""
    result = KitResult()
    for case in ElementTree.parse(path).getroot().iter("testcase"):  # noqa: S314  (written by our own process)
        name = case.get("name", "").replace("()", "")
        failure = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
        skipped = case.find("skipped")
        if failure is not None:
            result.failed[name] = failure.get("message") or (failure.text or "")[:500]
        elif skipped is not None:
            result.aborted[name] = skipped.get("message") or (skipped.text or "")[:200]
        else:
            result.passed.append(name)
    return result


def _class_path() -> str:
    tests = [fetch(f"iceberg-{jar.classifier}", jar) for jar in _TESTS]
    parts = [*tests, fetch("iceberg-rck", *_LIBRARIES)]
    return os.pathsep.join([*(f"{part}/*" for part in parts), *hadoop()])
