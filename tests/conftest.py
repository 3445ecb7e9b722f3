"""Fixtures are plugins, one noun each; this file only orders the run."""

from __future__ import annotations

import signal

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.servers.cockroachdb import CockroachCluster

_FIXTURES = (
    "databases", "servers", "kafka", "mosquitto", "stores", "sources", "followers", "daemons", "collector", "lake",
    "assembled_daemons", "random_faults", "project_directories",
)  # fmt: skip
pytest_plugins = [f"tests.fixtures.{name}" for name in _FIXTURES]

# What only a CockroachDB cluster can show, which `make cockroach` names.
collect_ignore_glob = [] if CockroachCluster.backends() else ["*/test_cockroach_*.py"]

# A busy machine is no reason to fail: examples have no deadline, and slow data generation is no error.
settings.register_profile("astha", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("astha")

_ORDER = ("unit", "properties", "contracts", "integration", "faults", "e2e")


def pytest_configure() -> None:
    """A shell in the background has its children ignore interrupts, and they theirs; some tests interrupt a command.

    Tracebacks are plain, as the daemon's are: structlog's default, with colours and local variables, holds the event
    loop for seconds on a busy machine.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], renderer])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs quick tests first, so that a broken build fails early."""

    def rank(item: pytest.Item) -> tuple[bool, int]:
        folders = item.nodeid.split("/")
        place = next((number for number, name in enumerate(_ORDER) if name in folders), len(_ORDER))
        return item.get_closest_marker("slow") is not None, place

    items.sort(key=rank)
