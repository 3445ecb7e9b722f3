"""Metrics of the catalog: requests by route and status, and how long they took."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest


class CatalogMetrics:
    CONTENT_TYPE = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "astha_catalog_requests",
            "Requests, by method, route and status.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "astha_catalog_request_seconds",
            "Time to respond to a request.",
            ["method", "route"],
            buckets=[2**power / 1024 for power in range(14)],
            registry=self._registry,
        )

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """`route` is a pattern, so that clients can't add labels; it is empty for unknown paths."""
        known = method if route else ""
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(known, route).observe(seconds)

    def exposition(self) -> bytes:
        return generate_latest(self._registry)
