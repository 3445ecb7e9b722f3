"""The settings of tracing: which commits are traced, and where spans are sent."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from astha.redaction import secrets_in_url
from astha.settings.groups import SettingsGroup


class TracingSettings(SettingsGroup):
    enabled: bool = Field(False, description="Send OpenTelemetry spans over OTLP/HTTP; needs the extra `otel`.")
    endpoint: str | None = Field(
        None,
        description="URL of the collector, such as http://collector:4318/v1/traces. By default that of the "
        "variables OTEL_EXPORTER_OTLP_*, and without them http://localhost:4318/v1/traces.",
    )
    headers: dict[str, SecretStr] = Field({}, description="Headers of each request to the collector.")
    service_name: str | None = Field(
        None, min_length=1, description="Name of the service; by default OTEL_SERVICE_NAME, or `astha`."
    )
    sample_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Fraction of commits that are traced. A follower traces those that its leader does.",
    )
    max_traces_per_s: float = Field(
        100.0, gt=0, description="Traces of commits per second at most; those beyond are not sampled."
    )
    max_queued_spans: int = Field(
        4096, ge=1, description="Spans that wait for the collector; those beyond are dropped and counted."
    )
    export_timeout_s: float | None = Field(
        None,
        gt=0,
        description="Time limit of a request to the collector; by default OTEL_EXPORTER_OTLP_TIMEOUT, or 10.",
    )
    shutdown_timeout_s: float = Field(3.0, ge=0, description="Time to send the last spans when the daemon stops.")

    @field_validator("endpoint")
    @classmethod
    def _http_url(cls, value: str | None) -> str | None:
        if value is not None:
            parts = urlsplit(value)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("must be a URL such as http://collector:4318/v1/traces")
        return value

    def header_values(self) -> dict[str, str]:
        """The result contains secrets."""
        return {name: value.get_secret_value() for name, value in self.headers.items()}

    def secrets(self) -> Iterator[str]:
        yield from self.header_values().values()
        if self.endpoint is not None:
            yield from secrets_in_url(self.endpoint)
