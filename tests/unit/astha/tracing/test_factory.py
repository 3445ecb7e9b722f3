"""Tracing costs nothing while it is off, and says what is missing when it is on."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from astha.errors import ConfigError
from astha.preflight.results import Verdict
from astha.preflight.tracing import tracing_checks
from astha.redaction import NO_SECRETS
from astha.settings.tracing import TracingSettings
from astha.testing import ManualClock
from astha.tracing.factory import log_processors, open_tracing

OFF = """
import sys
import astha.process, astha.preflight, components.kafka_sink.subscriber, components.mqtt_sink.subscriber
from astha.settings import Settings
from astha.tracing.factory import log_processors, open_tracing
from astha.clock import SystemLoopClock
settings = Settings()
assert log_processors(settings.tracing) == []
assert open_tracing(
    settings.tracing, settings.redactor(), SystemLoopClock(), group="astha", source="sqlite", instance="", follows=False
) is None
print(*(name for name in sys.modules if name.startswith(("opentelemetry", "astha.tracing.otel"))))
"""


def test_without_tracing_no_package_of_opentelemetry_is_imported() -> None:
    loaded = subprocess.run([sys.executable, "-c", OFF], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == []


def test_a_missing_extra_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _hide_opentelemetry(monkeypatch)
    settings = TracingSettings(enabled=True)
    with pytest.raises(ConfigError, match=r"pip install 'astha\[otel\]'"):
        log_processors(settings)
    with pytest.raises(ConfigError, match=r"tracing.enabled .*pip install 'astha\[otel\]'"):
        open_tracing(settings, NO_SECRETS, ManualClock(), group="g", source="sqlite", instance="", follows=False)


async def test_the_check_of_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await tracing_checks(TracingSettings()) == []
    _hide_opentelemetry(monkeypatch)
    (result,) = await tracing_checks(TracingSettings(enabled=True))
    assert result.verdict is Verdict.PROBLEM
    assert "pip install 'astha[otel]'" in result.detail


async def test_the_check_of_a_collector() -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = TracingSettings(enabled=True, endpoint=f"http://127.0.0.1:{port}/v1/traces")
    (result,) = await tracing_checks(settings)
    assert result.verdict is Verdict.OK
    server.close()
    await server.wait_closed()
    (result,) = await tracing_checks(settings)
    assert result.verdict is Verdict.WARNING
    assert str(port) in result.detail


def _hide_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("opentelemetry", "astha.tracing.otel"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_Missing(), *sys.meta_path])


class _Missing:
    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize("endpoint", ["collector:4318", "ftp://collector", "http://", "grpc://collector:4317"])
def test_an_endpoint_that_is_no_http_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="such as http://collector"):
        TracingSettings(endpoint=endpoint)


def test_headers_and_passwords_are_secrets() -> None:
    settings = TracingSettings.model_validate(
        {"endpoint": "https://me:hidden@collector/v1/traces", "headers": {"authorization": "Bearer abcdef"}}
    )
    assert {"Bearer abcdef", "hidden"} <= set(settings.secrets())
    assert "abcdef" not in repr(settings)
